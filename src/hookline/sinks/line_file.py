"""``LineFile``: a text file that grows by complete lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from hookline.errors import SetupError

logger = logging.getLogger("hookline")


class LineFile:
    """Unbuffered text file. The folder and the file are created at the first line.

    A write that fails is undone completely, so that the same lines can be retried.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, lines: str | bytes) -> None:
        """Append lines.

        Args:
            lines: Lines that each end with a line break.
        """
        # A deleted file cannot be read again, although writing to it still works.
        if self._file is not None and not os.fstat(self._file.fileno()).st_nlink:
            logger.warning("%s was deleted while a run writes it: its rows are lost, and a new file begins", self.path)
            self.close()
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        data, written = encode_lines(lines) if isinstance(lines, str) else lines, 0
        try:
            while written < len(data):  # A nearly full disk writes a part, and raises at the next write.
                written += self._file.write(data[written:])
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._file.tell() - written)
            error.add_note(f"while {self.path} was written")  # The system's error has no path.
            raise

    def rewrite(self, lines: Iterable[str]) -> None:
        """Replace all lines atomically: a reader sees the old file or the new one.

        Args:
            lines: The new lines.
        """
        self.close()
        if self.path.exists() and not self.path.is_file():
            raise SetupError(f"{self.path} is a folder or a device; give the path of a file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with fresh.open("wb") as file:
                file.writelines(map(encode_lines, lines))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode_lines(text: str) -> bytes:
    """Return the text as bytes, as the file has them."""
    return text.encode(errors="backslashreplace")  # A lone surrogate has no UTF-8 encoding.
