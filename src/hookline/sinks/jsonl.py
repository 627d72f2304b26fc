"""``metrics.jsonl``: one row per value, written by the loop itself, so that nothing is ever dropped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

from hookline.errors import HooklineWarning
from hookline.records import Record, from_json, to_json


def _warn(text: str) -> None:
    warnings.warn(text, HooklineWarning, stacklevel=3)


class JsonLines:
    """Appends rows to a file, unbuffered; the folder and the file are made at the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def write(self, rows: Sequence[Record]) -> None:
        if not rows:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        lines = "".join([f"{to_json(row)}\n" for row in rows]).encode()
        while lines:  # a disk that is nearly full takes a part, and says why at the next one
            lines = lines[self._file.write(lines) :]

    @property
    def size(self) -> int:
        """The bytes that are in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, size: int) -> Iterator[Record]:
        """The rows in the first ``size`` bytes."""
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file.read(size).splitlines():
                    try:
                        yield from_json(line.decode())
                    except (ValueError, KeyError, TypeError) as error:
                        _warn(f"{self.path}: a row cannot be read and is left out: {line[:80]!r} ({error})")

    def rewind(self, size: int) -> None:
        """Forget the rows after the first ``size`` bytes: the run goes on from there."""
        self.close()
        if self.path.exists():
            with self.path.open("rb") as file:
                whole = file.read(size).rfind(b"\n") + 1  # after a power cut the last line may be torn
            if self.size > whole:
                os.truncate(self.path, whole)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
