"""``EventFile``: an event file of TensorBoard, and how the files of a run are rewound.

This module does not use ``SummaryWriter``, for these reasons:

- It writes in its own thread, so that a retry could write rows twice.
- It names files by second and process, so that two files of the same second may be read in the wrong order.
- It can only ask readers to ignore rows (``purge_step``), which some readers do not do.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from hookline.sinks.tensorboard_rows import EVENTS

_NAME = "events.out.tfevents."
_STAMP = re.compile(re.escape(_NAME) + r"(\d+)\.")
_OWNER = "hookline "
_HEADER = struct.Struct("<QI")  # Length of a record, and its checksum.
_FOOTER = 4
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")


class EventFile:
    """A new file in a folder. An append that fails leaves no partial data behind."""

    def __init__(self, folder: Path, run_id: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata

        self._frame = framing()
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in order of their names. This file must be last.
        stamp = max([int(time.time()), *(_stamp(path) + 1 for path in folder.glob(f"{_NAME}*"))])
        self.path = folder / f"{_NAME}{stamp:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = self.path.open("xb", buffering=0)
        self._size = 0
        owner = SourceMetadata(writer=f"{_OWNER}{run_id}")
        self.append([Event(wall_time=time.time(), file_version="brain.Event:2", source_metadata=owner)])

    def append(self, events: Iterable[Any]) -> None:
        """Append events. Remove the rest of an append that failed."""
        framed = b"".join([self._frame(event.SerializeToString()) for event in events])
        if os.fstat(self._file.fileno()).st_size != self._size:  # An append failed, for example on a full disk.
            self._file.truncate(self._size)
            self._file.seek(self._size)
        left = memoryview(framed)
        size = self._size + len(left)
        while left:
            left = left[self._file.write(left) :]
        self._size = size

    def close(self) -> None:
        self._file.close()


def framing() -> Callable[[bytes], bytes]:
    """Return a function that makes a record of bytes: length and data, each with a checksum.

    TensorBoard computes the checksum in Python, which takes 0.1 s and more per MB and blocks the loop.
    """
    try:
        from google_crc32c import value as checksum
    except ImportError:  # TensorBoard was installed without the extra of Hookline.
        return _framed_by_torch

    def masked(data: bytes) -> bytes:
        found = checksum(data)
        return _CHECKSUM.pack(((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def framed(data: bytes) -> bytes:
        length = _LENGTH.pack(len(data))
        return b"".join((length, masked(length), data, masked(data)))

    return framed


def _framed_by_torch(data: bytes) -> bytes:
    """Return the record as torch makes it, with the slow checksum."""
    from torch.utils.tensorboard import RecordWriter

    file = BytesIO()
    RecordWriter(file).write(data)
    return file.getvalue()


def own_files(folder: Path, run_id: str | None) -> list[Path]:
    """Return the files that this sink has written, all or those of one run, in reading order."""
    found = []
    for path in sorted(folder.glob(f"{_NAME}*")):
        first = next(_events(path), None)
        writer = "" if first is None else first[1].source_metadata.writer
        if writer.startswith(_OWNER) and run_id in (None, writer.removeprefix(_OWNER)):
            found.append(path)
    return found


def rewind(files: Sequence[Path], holds: Callable[[str, int], bool]) -> int:
    """Remove everything from the first invalid row on. Return the highest remaining step.

    Args:
        files: The files in reading order.
        holds: Function of tag and step that returns whether a row is valid.
    """
    highest = -1
    for number, path in enumerate(files):
        for begin, event in _events(path):
            tag = event.summary.value[0].tag if event.summary.value else ""
            if not tag or tag.startswith(("_hparams_/", EVENTS)):
                continue  # This is not a row.
            if not holds(tag, event.step):
                os.truncate(path, begin)
                for later in files[number + 1 :]:
                    later.unlink()
                return highest
            highest = max(highest, event.step)
    return highest


def _stamp(path: Path) -> int:
    """Return the time stamp in a file name, or 0."""
    found = _STAMP.match(path.name)
    return int(found[1]) if found else 0


def _events(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the position of each event and the event, up to the end or to incomplete data."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    with path.open("rb") as file:
        begin, size = 0, os.fstat(file.fileno()).st_size
        while begin + _HEADER.size <= size:
            length, _ = _HEADER.unpack(file.read(_HEADER.size))
            end = begin + _HEADER.size + length + _FOOTER
            if end > size:
                return
            try:
                yield begin, Event.FromString(file.read(length))
            except DecodeError:
                return
            file.seek(_FOOTER, os.SEEK_CUR)
            begin = end
