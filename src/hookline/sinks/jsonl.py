"""Rows as JSON lines: ``metrics.jsonl``, which the loop itself writes, and a copy of it for those who want one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from hookline.errors import HooklineWarning, SetupError
from hookline.records import Record, from_json, to_json
from hookline.sinks.line_file import LineFile
from hookline.sinks.sink import RunInfo

OF_THE_LOOP = ("metrics.jsonl", "events.jsonl")


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
        if self.size > whole:
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


class JSONL:
    """Writes every record to a file of your choice, one JSON object a line: a second copy of ``metrics.jsonl``.

    The run's folder always has its own ``metrics.jsonl``, and the loop writes that one itself. This copy may lie
    on another disk, and in a run without a folder it is the only one. Unlike ``metrics.jsonl`` it also has the
    events of the run (``kind`` is ``"event"``); pictures are named, not contained.

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

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows = JsonLines(self.path)

    def start(self, info: RunInfo) -> None:
        if info.folder is not None and self.path.resolve() in [info.folder.resolve() / name for name in OF_THE_LOOP]:
            raise SetupError(
                f"JSONL({str(self.path)!r}): the loop itself writes this file, without a sink; give a copy another path"
            )
        self._rows.close()
        LineFile(self.path).rewrite(f"{to_json(row)}\n" for row in self._earlier(info))

    def _earlier(self, info: RunInfo) -> Iterator[Record]:
        """What still holds. A run without a folder has it nowhere but here."""
        if info.folder is not None or not info.step:
            return info.earlier()
        return chain(info.earlier(), (row for row in self._rows.read(self._rows.size) if row.step <= info.step))

    def write(self, records: Sequence[Record]) -> None:
        self._rows.write(records)

    def flush(self) -> None:
        """Every row is in the file as soon as it is written."""

    def close(self) -> None:
        self._rows.close()
