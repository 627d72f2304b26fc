"""Write and read files with their SHA-256 in one pass over the bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hookline.errors import CheckpointCorruptError

CHUNK = 2**20
"""Bytes to hash and write at a time, so that they are still in the processor's cache."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 of one file, as in the manifest."""

    size: int
    sha256: str


def write_file(name: str, parts: Iterable[bytes | memoryview], folder: int) -> FileRecord:
    """Write a new file in an open folder, sync it, and return its size and hash.

    Only the owner can read the file. The function never overwrites a file and never follows a symbolic link.

    Args:
        name: Name of the file.
        parts: The content, in order.
        folder: File descriptor of the folder.

    Raises:
        OSError: If the file exists or cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    digest, size = hashlib.sha256(), 0
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), CHUNK):
                chunk = view[start : start + CHUNK]
                digest.update(chunk)
                size += len(chunk)
                while chunk:  # A nearly full disk accepts a part of the bytes and raises at the next write.
                    chunk = chunk[os.write(file, chunk) :]
        os.fsync(file)
    finally:
        os.close(file)
    return FileRecord(size, digest.hexdigest())


class HashedReader:
    """Read a file from start to end, and compare its hash with the manifest in ``finish``.

    Args:
        path: Path of the file, for errors.
        name: Name of the file in the folder.
        folder: File descriptor of the folder.
        expected: Size and hash from the manifest. ``None`` to compare nothing.

    Raises:
        CheckpointCorruptError: If the file cannot be read or has another size.
    """

    def __init__(self, path: str, name: str, folder: int, expected: FileRecord | None = None) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._expected = expected
        self._read = 0
        self._file = open_regular(path, name, folder)
        self.size = os.fstat(self._file).st_size
        if expected is not None and self.size != expected.size:
            os.close(self._file)
            raise wrong_size(path, self.size, expected.size)

    @property
    def left(self) -> int:
        """Number of bytes that are still to be read."""
        return self.size - self._read

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes."""
        if count > self.left:
            raise CheckpointCorruptError(self.path, f"it ends {count - self.left:,} bytes too early")
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, view: memoryview) -> None:
        """Read the next ``len(view)`` bytes into a buffer."""
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self.read_at(self._read, chunk)
            self._digest.update(chunk)
            self._read += len(chunk)

    def read_at(self, position: int, view: memoryview) -> None:
        """Fill a buffer from a position in the file. The position and the hash do not change."""
        filled = 0
        while filled < len(view):
            try:
                count = os.preadv(self._file, [view[filled:]], position + filled)
            except OSError as error:
                raise CheckpointCorruptError(self.path, f"it cannot be read: {error.strerror}") from error
            if not count:
                raise CheckpointCorruptError(self.path, "it ends too early", "another process changes it")
            filled += count

    def finish(self) -> None:
        """Read the rest of the file and compare its hash with the manifest."""
        if self.left:
            buffer = memoryview(bytearray(min(self.left, CHUNK)))
            while self.left:
                self.read_into(buffer[: self.left])
        if self._expected is not None and self._digest.hexdigest() != self._expected.sha256:
            raise CheckpointCorruptError(
                self.path,
                f"its SHA-256 is {self._digest.hexdigest()[:12]}…, but the manifest says {self._expected.sha256[:12]}…",
                "the file has changed since it was written. Use another checkpoint",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        os.close(self._file)


def open_regular(path: str, name: str, folder: int) -> int:
    """Open a regular file for reading. Links, folders, pipes and devices raise an error."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise CheckpointCorruptError(path, "it is missing") from None
    except OSError as error:
        reason = "it is a symbolic link" if _is_link(name, folder) else f"it cannot be opened: {error.strerror}"
        raise CheckpointCorruptError(path, reason) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        kind = "folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "pipe or device"
        os.close(file)
        raise CheckpointCorruptError(path, f"it is a {kind}, not a file")
    return file


def wrong_size(path: str, found: int, expected: int) -> CheckpointCorruptError:
    return CheckpointCorruptError(path, f"it has {found:,} bytes, but the manifest says {expected:,}")


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
