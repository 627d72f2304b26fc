"""A new folder that is there whole or not at all, whatever is killed or full.

It is written under a temporary name beside its final place: on the same file system, so that the rename at the end
is one step. Each file is synced, the manifest is written last, the folder is synced, renamed, and its parent synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hookline.checkpoint import names
from hookline.checkpoint.hashed_file import FileRecord, write_file
from hookline.errors import CheckpointWriteError

_MOST_NUMBERS: Final = 10_000


class Commit:
    """One checkpoint that is being written. Leaving the ``with`` before ``finish`` removes all of it.

    A name that is taken is never written over: the new one gets a number, ``step-00000500-2``.

    Every ``OSError`` becomes a ``CheckpointWriteError`` with the path, what was needed and what is free.
    """

    def __init__(self, folder: Path, name: str, needed: int) -> None:
        self._folder = folder
        self._name = names.check_name(name)
        self._needed = needed
        self._temporary = folder / names.temporary_of(name)
        self._directory = -1
        self._done = False

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self._temporary

    def __enter__(self) -> Self:
        try:
            make_folder(self._folder)
            self._check_space()
            os.mkdir(self._temporary, 0o700)
            try:
                self._directory = open_folder(self._temporary)
            except OSError:
                os.rmdir(self._temporary)
                raise
        except OSError as error:
            raise self._failed(self._temporary, error) from error
        return self

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> FileRecord:
        """Write one file and sync it."""
        try:
            return write_file(name, parts, self._directory)
        except OSError as error:
            raise self._failed(self._temporary / name, error) from error

    def finish(self, manifest: bytes) -> Path:
        """Write the manifest and give the folder its name: from now on it is there, also after a power cut."""
        self.write(names.MANIFEST, [manifest])
        try:
            os.fsync(self._directory)
            final = self._rename()
            self._done = True  # it is there now: an error of the last sync must not take it away again
            sync_folder(self._folder)
        except OSError as error:
            raise self._failed(self._folder / self._name, error) from error
        return final

    def _rename(self) -> Path:
        for number in range(1, _MOST_NUMBERS):
            final = self._folder / (self._name if number == 1 else f"{self._name}-{number}")
            if os.path.lexists(final):
                continue
            try:
                os.rename(self._temporary, final)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                continue  # someone has just made it
            return final
        raise OSError(errno.EEXIST, f"{_MOST_NUMBERS:,} checkpoints have this name")

    def _check_space(self) -> None:
        free = free_bytes(self._folder)
        if free is not None and free < self._needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _failed(self, path: Path, error: OSError) -> CheckpointWriteError:
        return CheckpointWriteError(str(path), error, needed=self._needed, free=free_bytes(self._folder))

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        os.close(self._directory)
        if self._done:
            return
        try:
            remove_flat(self._temporary)
        except OSError as second:
            if error is not None:
                error.add_note(f"its temporary could not be removed ({second}); the next start removes it")


def make_folder(folder: Path) -> None:
    """Make a folder, for its owner alone, and sync the parents that are new, outermost first."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)


def remove_flat(folder: Path) -> None:
    """Remove a folder of files. Files only: whatever else is in it makes this fail."""
    directory = open_folder(folder)
    try:
        for name in sorted(os.listdir(directory)):
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(folder)


def open_folder(folder: Path) -> int:
    """Open a folder, not a link to one."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in a folder is on the disk afterwards."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def free_bytes(folder: Path) -> int | None:
    """What is free for us on the file system of a folder; ``None`` where that is not known."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None
