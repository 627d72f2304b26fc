"""``LineFile``: a text file that grows by whole lines."""

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
    """Appends to a file, unbuffered; the folder and the file are made at the first line.

    What could not be written whole is taken back, so that the same lines can be tried again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, lines: str | bytes) -> None:
        """Add lines; each ends with a line break."""
        if self._file is not None and not os.fstat(self._file.fileno()).st_nlink:  # nobody could read it any more
            logger.warning("%s was deleted while a run writes it: its rows are lost, and it begins anew", self.path)
            self.close()
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        data, written = encode_lines(lines) if isinstance(lines, str) else lines, 0
        try:
            while written < len(data):  # a disk that is nearly full takes a part, and says why at the next one
                written += self._file.write(data[written:])
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._file.tell() - written)
            error.add_note(f"while {self.path} was written")  # the system does not say where there is no space
            raise

    def rewrite(self, lines: Iterable[str]) -> None:
        """Put these in place of all lines, in one piece: a reader sees the old file or the new one."""
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
        """The bytes that are in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode_lines(text: str) -> bytes:
    """The bytes of a text, as they stand in the file."""
    return text.encode(errors="backslashreplace")  # half of a surrogate pair has no UTF-8
