"""Rows as JSON lines: ``metrics.jsonl``, which the loop itself writes, and a copy of it for those who want one."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from hookline.errors import HooklineWarning, SetupError
from hookline.records import Record, from_json, to_json
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.line_file import LineFile, encode_lines
from hookline.sinks.sink import RunInfo

OF_THE_LOOP = ("metrics.jsonl", "events.jsonl")
MAX_WAITING_BYTES = 16_000_000
"""The rows of one file that wait in memory while it cannot be written."""


def _warn(text: str) -> None:
    warnings.warn(text, HooklineWarning, stacklevel=3)


class JsonLines:
    """Appends rows to a file, unbuffered; the folder and the file are made at the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LineFile(path)

    def write(self, rows: Sequence[Record]) -> None:
        if rows:
            self._file.append("".join([f"{to_json(row)}\n" for row in rows]))

    @property
    def size(self) -> int:
        """The bytes that are in the file."""
        return self._file.size

    def read(self, size: int, *, quietly: bool = False) -> Iterator[Record]:
        """The rows in the first ``size`` bytes, one at a time; ``quietly`` where it was said what cannot be read."""
        for line in self._lines(size):
            try:
                yield from_json(line.decode())
            except (ValueError, KeyError, TypeError) as error:
                if quietly:
                    continue
                _warn(f"{self.path}: a row cannot be read and is left out: {line[:80]!r} ({error})")

    def rewind(self, size: int) -> None:
        """Forget the rows after the first ``size`` bytes: the run goes on from there."""
        self.close()
        # After a power cut the last line may be torn.
        whole = sum(len(line) for line in self._lines(size) if line.endswith(b"\n"))
        if self._file.size > whole:
            os.truncate(self.path, whole)

    def _lines(self, size: int) -> Iterator[bytes]:
        """The lines in the first ``size`` bytes; the last one may be cut."""
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file:
                    if size <= 0:
                        return
                    yield line[:size]
                    size -= len(line)

    def close(self) -> None:
        self._file.close()


class WaitingJsonLines(JsonLines):
    """Keeps rows that cannot be written in memory, and tries them again before each later row.

    ``size``, ``read`` and ``rewind`` treat the waiting rows as a part of the file, so the position that a checkpoint
    saves is also right after they are written. When too many rows wait, new ones are dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._waiting: deque[tuple[bytes, int]] = deque()  # what one call of write got, and its number of rows
        self._moving = threading.Lock()  # a sink's thread may read while rows go from memory to the file
        self.written = self.dropped = self.failures = 0
        self.error: OSError | None = None
        """Why rows wait; ``None`` if none does."""

    @property
    def waiting(self) -> int:
        """The number of rows that wait."""
        return sum(count for _, count in self._waiting)

    def write(self, rows: Sequence[Record]) -> None:
        if not rows:
            return
        data = encode_lines("".join([f"{to_json(row)}\n" for row in rows]))
        if self._waiting and self._waiting_bytes + len(data) > MAX_WAITING_BYTES and not self.retry():
            self.dropped += len(rows)
            return
        with self._moving:
            self._waiting.append((data, len(rows)))
        self.retry()

    def retry(self) -> bool:
        """Write the rows that wait; whether none is left."""
        with self._moving:
            try:
                while self._waiting:
                    data, count = self._waiting[0]
                    self._file.append(data)
                    self._waiting.popleft()
                    self.written += count
            except OSError as error:
                self.failures += 1
                self.error = error
                return False
            self.error = None
            return True

    def abandon(self) -> int:
        """Drop the rows that wait; the number of all rows that were dropped."""
        self.dropped += self.waiting
        self._waiting.clear()
        return self.dropped

    @property
    def size(self) -> int:
        """The bytes that are in the file, and of the rows that wait."""
        with self._moving:
            return self._file.size + self._waiting_bytes

    def rewind(self, size: int) -> None:
        excess = self.size - size
        with self._moving:
            while self._waiting and excess > 0:
                excess -= len(self._waiting.pop()[0])
        if excess > 0 or not self._waiting:
            super().rewind(size)

    @property
    def _waiting_bytes(self) -> int:
        return sum(len(data) for data, _ in self._waiting)

    def _lines(self, size: int) -> Iterator[bytes]:
        with self._moving:
            in_file, waiting = self._file.size, list(self._waiting)
        yield from super()._lines(min(size, in_file))
        size -= in_file
        for data, _ in waiting:
            if size <= 0:
                return
            yield from data[:size].splitlines(keepends=True)
            size -= len(data)


class JSONL:
    """Writes every record to a file of your choice, one JSON object a line: a second copy of ``metrics.jsonl``.

    A relative ``path`` is in the run's folder; an absolute one may be on another disk. The loop itself always writes
    ``metrics.jsonl``, if the run has a folder. Unlike ``metrics.jsonl`` this copy also has the events of the run
    (``kind`` is ``"event"``); images are named, not contained.

    The file is that of one run: a new run begins it anew. After a resume it holds what ``metrics.jsonl`` holds at
    that step, so each metric has one value a step, and then goes on.

    >>> from tempfile import mkdtemp
    >>> from hookline.records import MetricRow
    >>> sink = JSONL(Path(mkdtemp()) / "copy.jsonl")
    >>> sink.write([MetricRow("val/loss", 10, 1, 0.5, "eval", 2.5)])
    >>> sink.close()
    >>> print(sink.path.read_text(), end="")
    {"name": "val/loss", "step": 10, "epoch": 1, "value": 0.5, "kind": "eval", "seconds": 2.5}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_to_write(path, "path", "JSONL")
        """As it was given. A relative path is in the run's folder."""
        self.needs_folder = not self.path.is_absolute()
        self._rows: JsonLines | None = None if self.needs_folder else JsonLines(self.path)
        if str(self.path) in OF_THE_LOOP:
            raise _is_taken(self.path)

    def start(self, info: RunInfo) -> None:
        self.close()
        path = in_run_folder(self.path, info.folder, "path", "JSONL")
        if info.folder is not None and path.resolve() in [info.folder.resolve() / name for name in OF_THE_LOOP]:
            raise _is_taken(self.path)
        self._rows = rows = JsonLines(path)
        LineFile(path).rewrite(f"{to_json(row)}\n" for row in _earlier(info, rows))

    def write(self, records: Sequence[Record]) -> None:
        if self._rows is None:
            raise SetupError(f"JSONL(path={str(self.path)!r}): no run has started it. Give an absolute path.")
        self._rows.write(records)

    def flush(self) -> None:
        """Every row is in the file as soon as it is written."""

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


def _earlier(info: RunInfo, rows: JsonLines) -> Iterator[Record]:
    """The rows that still hold. A run without a folder has them only in this file."""
    if info.folder is not None or not info.step:
        return info.earlier()
    return chain(info.earlier(), (row for row in rows.read(rows.size) if row.step <= info.step))


def _is_taken(path: Path) -> SetupError:
    return SetupError(
        f"JSONL({str(path)!r}): the loop itself writes this file, without a sink; give a copy another path"
    )
