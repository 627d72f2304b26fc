"""``Rows``: parse the lines of ``metrics.jsonl`` into series and media."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow, from_json
from hookline.records.metric import SPECIAL, decode
from hookline.report.kept import Kept
from hookline.report.series import Series

KEEP = 100
"""Maximum number of images, texts, tables, … of one name to keep."""
KEEP_EVENTS = 500
"""Maximum number of events of one kind to keep."""

_BEGINNINGS = ("start", "resume")
_METRICS = frozenset({"step", "epoch", "eval"})
_WRONG = (ValueError, KeyError, TypeError, OverflowError, AttributeError, RecursionError)
_TEXTS = ("name", "text", "caption", "file")
_NUMBERS = ("step", "epoch", "seconds", "took", "width", "height", "size", "odd")


class Happened(NamedTuple):
    """An event and its session. A resumed session counts seconds from its checkpoint."""

    session: int
    row: EventRow


class Rows:
    """Accept lines. Invalid lines are counted and skipped.

    >>> rows = Rows()
    >>> rows.take(['{"name": "a", "step": 1, "epoch": 0, "value": 0.5, "kind": "step", "seconds": 1.0}', "torn {"])
    >>> list(rows.series), rows.count, rows.damaged
    (['a'], 1, 1)
    """

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.arrays: dict[str, Kept[MetricRow]] = {}
        self.images: dict[str, Kept[ImageRow]] = {}
        self.texts: dict[str, Kept[TextRow]] = {}
        self.tables: dict[str, Kept[TableRow]] = {}
        self.histograms: dict[str, Kept[HistogramRow]] = {}
        self.files: dict[str, Kept[FileRow]] = {}
        self.events: dict[str, Kept[Happened]] = {}
        self._session = 0
        self.count = 0
        self.damaged = 0

    def take(self, lines: list[str]) -> None:
        """Parse all lines at once if all of them are valid, which is twice as fast."""
        try:
            found = json.loads(f"[{','.join(lines)}]")
            together = len(found) == len(lines)
        except (ValueError, RecursionError):
            together = False
        if together:
            for row, line in zip(found, lines, strict=True):
                self._take(row, line)
        else:
            for line in lines:
                self._take_alone(line)

    def _take_alone(self, line: str) -> None:
        if not line.strip():
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            self.damaged += 1
        else:
            self._take(row, line)

    def _take(self, row: Any, line: str) -> None:
        try:
            if row["kind"] in _METRICS:
                self._take_metric(row)
            else:
                self._take_other(from_json(line))
        except _WRONG:
            self.damaged += 1
        else:
            self.count += 1

    def _take_metric(self, row: dict[str, Any]) -> None:
        value = row["value"]
        if type(value) is str:
            value = SPECIAL[value]
        elif type(value) is list:
            array = MetricRow(**{**row, "value": decode(value)})
            _refuse_odd(array)
            _refuse_ragged(array.value)
            self.arrays.setdefault(array.name, Kept(KEEP)).add(array)
            return
        name = row["name"]
        series = self.series.get(name)
        if series is None:
            if type(name) is not str:
                raise TypeError(f"{name!r} is not a name")
            series = Series(name, row["kind"])
            series.add(row["step"], row["epoch"], row["seconds"], value)
            self.series[name] = series
        else:
            series.add(row["step"], row["epoch"], row["seconds"], value)

    def _take_other(self, row: Record) -> None:
        _refuse_odd(row)
        match row:
            case ImageRow():
                self.images.setdefault(row.name, Kept(KEEP)).add(row)
            case TextRow():
                self.texts.setdefault(row.name, Kept(KEEP)).add(row)
            case TableRow():
                _refuse_cells(row)
                self.tables.setdefault(row.name, Kept(KEEP)).add(row)
            case HistogramRow():
                _refuse_bins(row)
                self.histograms.setdefault(row.name, Kept(KEEP)).add(row)
            case FileRow():
                self.files.setdefault(row.name, Kept(KEEP)).add(row)
            case EventRow():
                self._session += row.name in _BEGINNINGS
                self.events.setdefault(row.name, Kept(KEEP_EVENTS)).add(Happened(self._session, row))
            case _:
                raise TypeError(f"{row.kind!r} is not a kind of row")


# -- lines that are JSON and no rows ---------------------------------------------------------------


def _refuse_odd(row: Record) -> None:
    """Refuse fields of the wrong type: the file is untrusted."""
    for name in _TEXTS:
        if not isinstance(getattr(row, name, ""), str):
            raise TypeError(f"{name} is not a string")
    for name in _NUMBERS:
        number = getattr(row, name, 0)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name} is not a number")
    if not isinstance(row.step, int) or not isinstance(row.epoch, int):
        raise TypeError("step and epoch must be integers")


def _refuse_cells(row: TableRow) -> None:
    cells = [*row.columns, *(cell for cells in row.rows for cell in cells)]
    if not all(cell is None or isinstance(cell, str | int | float) for cell in cells):
        raise TypeError("a cell must be a string or a number")


def _refuse_bins(row: HistogramRow) -> None:
    numbers = (*row.edges, *row.counts)
    if len(row.edges) != len(row.counts) + 1 or not all(isinstance(number, int | float) for number in numbers):
        raise TypeError("a histogram must have numbers, and one more edge than counts")


def _refuse_ragged(value: Any) -> None:
    """Refuse an array that is not rectangular."""
    shapes = {_shape(item) for item in value}
    if len(shapes) > 1:
        raise TypeError("the rows of an array must have the same length")


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, list):
        _refuse_ragged(value)
        return (len(value), *(_shape(value[0]) if value else ()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return ()
