"""``CSV``: metrics as a table for spreadsheets and pandas."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain, islice
from pathlib import Path

from hookline.errors import SetupError
from hookline.records import MetricRow, Record, Value
from hookline.records.metric import encode
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.line_file import LineFile
from hookline.sinks.sink import RunInfo

CHUNK = 1_000
"""So many rows are written at once."""
COLUMNS = ("name", "step", "epoch", "value", "kind", "seconds")
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the last four are the same signs in full width
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_STEP = re.compile(r'"(?:[^"]|"")*",(\d+),')


class CSV:
    r"""Writes every metric to a CSV file, one value a row: ``name, step, epoch, value, kind, seconds``.

    ``path`` is ``metrics.csv`` if not given; a relative path is in the run's folder. Only metrics are written: images,
    texts, tables, histograms, files and events are not for a table of numbers; the run's folder has them.

    The table is long and not wide, because metrics appear while a run goes on: a wide one would need a new column
    in the middle of it, that is, the whole file again, or a value that has no place. Here a row is written once,
    nothing is kept in memory, and what is in the file is right at any moment. The wide table is one line of
    pandas: ``pandas.read_csv(path).pivot(index="step", columns="name", values="value")``, and in a spreadsheet a
    pivot table.

    An array is a JSON text in its cell, and then pandas reads the column as text. NaN and infinities are ``nan``,
    ``inf`` and ``-inf``. A name that a spreadsheet would run as a formula (it begins with ``=``, ``+``, ``-`` or
    ``@``) has a ``'`` before it, and a line break in a name is written as ``\n``, so that a row is one line.

    The file is that of one run: a new run begins it anew. After a resume it holds the rows until that step, each
    once, and goes on.

    >>> from tempfile import mkdtemp
    >>> sink = CSV(Path(mkdtemp()) / "metrics.csv")
    >>> sink.write([MetricRow("val/loss", 10, 1, 0.5, "eval", 2.5), MetricRow("=x", 10, 1, [1, 2], "eval", 2.5)])
    >>> sink.close()
    >>> print(sink.path.read_text(), end="")
    "name","step","epoch","value","kind","seconds"
    "val/loss",10,1,0.5,"eval",2.5
    "'=x",10,1,"[1, 2]","eval",2.5
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else path_to_write(path, "path", "CSV")
        """As it was given. A relative path is in the run's folder."""
        self._file = LineFile(self.path) if self.path is not None and self.path.is_absolute() else None
        self.needs_folder = self._file is None

    def start(self, info: RunInfo) -> None:
        self.close()
        path = in_run_folder(self.path or Path("metrics.csv"), info.folder, "path", "CSV")
        self._file = LineFile(path)
        self._file.rewrite(chain([_text([COLUMNS])], _earlier(info, path)))

    def write(self, records: Sequence[Record]) -> None:
        if self._file is None:
            raise SetupError("CSV() has no path before start(info): give one, or let a run start it")
        if rows := _rows(records):
            self._file.append(rows if self._file.size else _text([COLUMNS]) + rows)

    def flush(self) -> None:
        """Every row is in the file as soon as it is written."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _earlier(info: RunInfo, path: Path) -> Iterator[str]:
    """The lines that still hold. A run without a folder has them nowhere but in this file."""
    earlier = info.earlier()
    while rows := list(islice(earlier, CHUNK)):
        yield _rows(rows)
    if info.folder is None and info.step and path.exists():
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for line in file:
                found = _STEP.match(line)
                if found and int(found[1]) <= info.step and line.endswith("\n"):
                    yield line


def _rows(records: Sequence[Record]) -> str:
    """The metrics among the records, as lines."""
    return _text(
        (_name(row.name), row.step, row.epoch, _value(row.value), row.kind, round(row.seconds, 6))
        for row in records
        if isinstance(row, MetricRow)
    )


def _text(rows: Iterable[Sequence[object]]) -> str:
    """All texts are quoted, since in some countries a spreadsheet parts cells at a semicolon."""
    text = StringIO()
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _name(name: str) -> str:
    # A name that begins with the mark gets one more, so that no two names become one.
    guard = "'" if name.lstrip().startswith((*FORMULA, "'")) else ""
    return guard + _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), name)


def _value(value: Value) -> float | str:
    return json.dumps(encode(value)) if isinstance(value, list) else value
