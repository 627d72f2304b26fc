"""The files of the ranks: what is spread over them is written through ``torch.distributed.checkpoint``.

Each rank writes one file with its own parts; copies of one part are written once. Torch puts an index of all parts
beside them. Every file is hashed while it is written, synced, and new: nothing is written over.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.state_dict_saver import save

from hookline.checkpoint import commit
from hookline.checkpoint.hashed_file import CHUNK, FileRecord
from hookline.distributed import Group
from hookline.errors import CheckpointError, CheckpointWriteError

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Group, needed: int) -> dict[str, FileRecord]:
    """By all: the parts of each rank into a new folder that all of them see; what this rank has written, by name.

    Where one rank fails all raise the same ``CheckpointError``.
    """
    writer = _Writer(folder)
    # Keys are not taken apart, so that the index holds nothing but names and numbers.
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        group.with_side(lambda side: save(dict(tensors), storage_writer=writer, planner=planner, process_group=side))
    except CheckpointException as error:  # torch has told all ranks of it
        raise _as_ours(error, folder, needed) from error
    return writer.files.written


def _as_ours(error: CheckpointException, folder: Path, needed: int) -> CheckpointError:
    rank, (cause, _) = min(error.failures.items())
    if isinstance(cause, OSError):
        found: CheckpointError = CheckpointWriteError(str(folder), cause, needed=needed, free=commit.free_bytes(folder))
    else:
        found = CheckpointError(f"{folder} could not be written: {type(cause).__name__}: {cause}")
    found.add_note(f"on rank {rank}")
    return found


class _Writer(FileSystemWriter):
    """One file a rank, hashed and synced; the index does not say where it was written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True, thread_count=1, overwrite=False)
        self.fs = self.files = _Files()

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


class _Files(FileSystem):
    """New files of the owner alone; ``written`` has the size and the hash of each."""

    def __init__(self) -> None:
        self.written: dict[str, FileRecord] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        stream = _HashedStream(os.open(path, _FLAGS, 0o600))
        try:
            yield stream
            self.written[Path(path).name] = stream.record()
        finally:
            stream.close()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        os.rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """It is there: rank zero has made it. Where another rank does not see it, the file system is not shared."""
        if not Path(path).is_dir():
            raise FileNotFoundError(
                2, "this rank does not see the folder that rank zero has made: all need one file system", str(path)
            )


class _HashedStream(io.RawIOBase):
    """What is written goes through SHA-256 to the file."""

    def __init__(self, file: int) -> None:
        self._file, self._digest, self._size = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self._digest.update(chunk)
            self._size += len(chunk)
            while chunk:
                chunk = chunk[os.write(self._file, chunk) :]
        return len(view)

    def tell(self) -> int:
        return self._size

    def fileno(self) -> int:
        return self._file

    def record(self) -> FileRecord:
        return FileRecord(self._size, self._digest.hexdigest())

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()
