"""A file may be torn, foreign or hostile: what can be read is read, the rest is counted."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
    to_json,
)
from hookline.report.rows import Rows

GOOD = MetricRow("train/loss", 10, 0, 0.5, "step", 1.0)
BAD = [
    "",
    "{",
    "null",
    "7",
    "[]",
    '"text"',
    "{}",
    '{"kind": "step"}',
    "[" * 100_000,
    "9" * 10_000,
    '{"name": "a", "step": 1, "epoch": 0, "value": null, "kind": "step", "seconds": 0}',
    '{"name": "a", "step": 1, "epoch": 0, "value": true, "kind": "step", "seconds": {}}',
    '{"name": "a", "step": 1, "epoch": 0, "value": "many", "kind": "step", "seconds": 0}',
    '{"name": 5, "step": 1, "epoch": 0, "value": 1, "kind": "step", "seconds": 0}',
    '{"name": ["a"], "step": 1, "epoch": 0, "value": 1, "kind": "step", "seconds": 0}',
    '{"name": "a", "step": 1.5, "epoch": 0, "value": 1, "kind": "step", "seconds": 0}',
    '{"name": "a", "step": 1, "epoch": 0, "value": [[1], [2, 3]], "kind": "eval", "seconds": 0}',
    '{"name": "a", "step": 1, "epoch": 0, "value": [1, {}], "kind": "eval", "seconds": 0}',
    '{"name": "a", "step": 1, "epoch": 0, "value": 1, "kind": "other", "seconds": 0}',
    '{"kind": "text", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "text": 5}',
    '{"kind": "text", "name": "a", "step": "x", "epoch": 0, "seconds": 0, "text": "t"}',
    '{"kind": "image", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "width": "1", "height": 1}',
    '{"kind": "table", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "columns": ["x"], "rows": [[{}]]}',
    '{"kind": "table", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "columns": ["x"], "rows": [5]}',
    '{"kind": "histogram", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "edges": [0], "counts": [1]}',
    '{"kind": "histogram", "name": "a", "step": 1, "epoch": 0, "seconds": 0, "edges": [0, "1"], "counts": [1]}',
    '{"kind": "event", "name": "a", "step": 1, "epoch": 0, "seconds": "soon"}',
]


def read(*lines: str) -> Rows:
    rows = Rows()
    rows.take(list(lines))
    return rows


def test_a_line_that_says_nothing_is_left_out_and_its_neighbours_are_read() -> None:
    for line in BAD:
        rows = read(to_json(GOOD), line, to_json(GOOD))
        assert {name: list(series.values) for name, series in rows.series.items()} == {"train/loss": [0.5, 0.5]}, line
        assert (rows.count, rows.damaged) == (2, 1 if line else 0), line
        assert not any((rows.arrays, rows.images, rows.texts, rows.tables, rows.histograms, rows.events)), line


@settings(deadline=None)
@given(lines=st.lists(st.text(max_size=80) | st.sampled_from([*BAD[2:8], to_json(GOOD)]), max_size=8))
def test_no_line_whatever_it_is_stops_the_reading(lines: list[str]) -> None:
    rows = read(*lines)
    assert rows.count >= sum(line == to_json(GOOD) for line in lines)


@settings(deadline=None)
@given(cut=st.integers(1, len(to_json(GOOD)) - 1))
def test_a_line_that_is_torn_anywhere_does_not_swallow_the_next(cut: int) -> None:
    rows = read(to_json(GOOD)[:cut], to_json(GOOD))
    assert list(rows.series["train/loss"].values) == [0.5]
    assert rows.damaged == 1


def test_lines_that_are_sound_only_together_are_not_rows() -> None:
    rows = read("[" + to_json(GOOD), to_json(GOOD) + "]")
    assert (rows.count, rows.damaged) == (0, 2)


def test_every_kind_of_row_goes_to_its_place() -> None:
    at = (10, 1, 2.5)
    found: list[Record] = [
        GOOD,
        MetricRow("val/confusion", 10, 1, [[1.0, math.nan], [0.0, 2.0]], "eval", 2.5),
        ImageRow("val/samples", *at, 4, 4, "four", "media/a.png"),
        TextRow("val/text", *at, "to be"),
        TableRow("val/worst", *at, ("sample", "loss"), (("a", 1.0), ("b", None))),
        HistogramRow("weights", *at, (0.0, 1.0, 2.0), (3, 4)),
        FileRow("predictions", *at, "media/p.csv", 12),
        EventRow("eval", *at, "val/loss 0.5", 0.7),
    ]
    rows = read(*map(to_json, found))
    assert rows.damaged == 0
    kept = (rows.arrays, rows.images, rows.texts, rows.tables, rows.histograms, rows.files)
    newest = [*(next(iter(kind.values())).newest for kind in kept), rows.events["eval"].newest.row]
    assert json.dumps([to_json(row) for row in newest]) == json.dumps([to_json(row) for row in found[1:]])


def test_nan_and_infinities_are_values() -> None:
    values = [math.nan, math.inf, -math.inf]
    rows = read(*(to_json(MetricRow("train/loss", step, 0, value, "step", 1.0)) for step, value in enumerate(values)))
    assert list(map(str, rows.series["train/loss"].values)) == ["nan", "inf", "-inf"]


def test_a_hundred_thousand_texts_of_one_name_do_not_fill_the_memory() -> None:
    rows = Rows()
    lines = [to_json(TextRow("val/text", step, 0, 0.0, "x" * 20)) for step in range(20_000)]
    rows.take(lines)
    assert rows.texts["val/text"].count == 20_000
    assert len(rows.texts["val/text"]) <= 100
