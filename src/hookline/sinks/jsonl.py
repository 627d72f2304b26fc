"""``metrics.jsonl``: one row per value, written by the loop itself, so that nothing is ever dropped."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

from hookline.records import MetricRow


class JsonLines:
    """Appends rows to a file, unbuffered; the folder and the file are made at the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def write(self, rows: list[MetricRow]) -> None:
        if not rows:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        lines = "".join([f"{row.to_json()}\n" for row in rows]).encode()
        while lines:  # a disk that is nearly full takes a part, and says why at the next one
            lines = lines[self._file.write(lines) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
