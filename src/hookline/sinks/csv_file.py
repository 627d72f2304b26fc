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
from hookline.events.arguments import checked_init
from hookline.records import MetricRow, Record, Value
from hookline.records.metric import encode
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.line_file import LineFile
from hookline.sinks.sink import RunInfo

CHUNK = 1_000
"""Number of earlier rows that are written at once."""
COLUMNS = ("name", "step", "epoch", "value", "kind", "seconds")
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # The last four are the same characters in full width.
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_STEP = re.compile(r'"(?:[^"]|"")*",(\d+),')


class CSV:
    r"""Write every metric to a CSV file, one value per row.

    The columns are ``name, step, epoch, value, kind, seconds``. Only metrics are written; the run's folder has
    images, texts, tables, histograms, files and events. For one column per metric, use
    ``pandas.read_csv(path).pivot(index="step", columns="name", values="value")``. A new run overwrites the
    file.

    Args:
        path: Path of the file. ``None``: ``metrics.csv``. A relative path is relative to the run's folder.

    Example:
        >>> from tempfile import mkdtemp
        >>> sink = CSV(Path(mkdtemp()) / "metrics.csv")
        >>> sink.write([MetricRow("val/loss", 10, 1, 0.5, "eval", 2.5), MetricRow("=x", 10, 1, [1, 2], "eval", 2.5)])
        >>> sink.close()
        >>> print(sink.path.read_text(), end="")
        "name","step","epoch","value","kind","seconds"
        "val/loss",10,1,0.5,"eval",2.5
        "'=x",10,1,"[1, 2]","eval",2.5
    """

    @checked_init
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else path_to_write(path, "path", "CSV")
        """Path as the user gave it. A relative path is relative to the run's folder."""
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
        """Do nothing: ``write`` is not buffered."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _earlier(info: RunInfo, path: Path) -> Iterator[str]:
    """Yield the lines that are still valid after a resume.

    Without a folder, only this file has them.
    """
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
    """Return the metrics among the records as lines."""
    return _text(
        (_name(row.name), row.step, row.epoch, _value(row.value), row.kind, round(row.seconds, 6))
        for row in records
        if isinstance(row, MetricRow)
    )


def _text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV.

    All strings are quoted, because spreadsheets in some countries also split cells at a semicolon.
    """
    text = StringIO()
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _name(name: str) -> str:
    # A name that starts with an apostrophe gets a second one, so that all names stay different.
    """Return a name that a spreadsheet does not run as a formula, on one line."""
    guard = "'" if name.lstrip().startswith((*FORMULA, "'")) else ""
    return guard + _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), name)


def _value(value: Value) -> float | str:
    """Return an array as a JSON string, and other values unchanged."""
    return json.dumps(encode(value)) if isinstance(value, list) else value
