"""Write a new folder atomically: after a crash, it is either complete or absent.

The folder is written under a temporary name in the same parent folder, and therefore on the same file system, where a
rename is atomic. The order is: write and sync each file, write the manifest, sync the folder, rename it, sync the
parent folder.
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
    """Write one checkpoint. Leaving the ``with`` block before ``finish`` removes all its files.

    An existing checkpoint is never overwritten: the new one gets a number, such as ``step-00000500-2``.

    Args:
        folder: Folder in which to create the checkpoint.
        name: Name of the checkpoint.
        needed: Number of bytes to write, which must be free on the file system.

    Raises:
        CheckpointWriteError: For every ``OSError``, with the path, the bytes needed and the bytes free.
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
        """Temporary folder that holds the files until ``finish``."""
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
        """Write the manifest and rename the folder. The checkpoint then survives a power failure."""
        self.write(names.MANIFEST, [manifest])
        try:
            os.fsync(self._directory)
            final = self._rename()
            self._done = True  # The checkpoint exists now; __exit__ must not remove it if the last sync fails.
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
                continue  # Another process has just created a checkpoint of this name.
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
                error.add_note(f"Its temporary folder could not be removed ({second}). The next run removes it.")


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can read, and sync each new parent, outermost first."""
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
    """Remove a folder that contains files only. A subfolder raises ``OSError``."""
    directory = open_folder(folder)
    try:
        for name in sorted(os.listdir(directory)):
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(folder)


def open_folder(folder: Path) -> int:
    """Open a folder and return its file descriptor. A symbolic link raises ``OSError``."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def sync_folder(folder: Path) -> None:
    """Flush to disk which entries were created, renamed or removed in a folder."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes on the file system of a folder, or ``None`` if they are unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None
