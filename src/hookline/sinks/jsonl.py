"""``metrics.jsonl``: one row per value, written by the loop itself, so that nothing is ever dropped."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from hookline.records import MetricRow


class JsonLines:
    """Appends rows to a file and flushes them; the folder and the file are made at the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def write(self, rows: list[MetricRow]) -> None:
        if not rows:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write("".join(f"{row.to_json()}\n" for row in rows))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
