"""A row of ``metrics.jsonl`` is one line of strict JSON and comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
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
    from_json,
    to_json,
)

NUMBERS = st.floats()
VALUES = NUMBERS | st.recursive(st.lists(NUMBERS, max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=8)
CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["nan", "inf", "-inf"])
WHEN: dict[str, Any] = {
    "name": st.text(),
    "step": st.integers(0, 10**12),
    "epoch": st.integers(0, 10**6),
    "seconds": st.floats(0, 1e9),
}
METRICS = st.builds(MetricRow, **WHEN, value=VALUES, kind=st.sampled_from(["step", "epoch", "eval"]))
EDGES = st.lists(st.floats(allow_nan=False), max_size=5).map(tuple)
OTHERS = st.one_of(
    st.builds(
        ImageRow,
        **WHEN,
        width=st.integers(0),
        height=st.integers(0),
        caption=st.text(),
        file=st.text(),
        png=st.just(b""),
    ),
    st.builds(TextRow, **WHEN, text=st.text()),
    st.builds(
        TableRow,
        **WHEN,
        columns=st.lists(st.text(), max_size=3).map(tuple),
        rows=st.lists(st.lists(CELLS, max_size=3).map(tuple), max_size=3).map(tuple),
    ),
    st.builds(HistogramRow, **WHEN, edges=EDGES, counts=st.lists(st.integers(0)).map(tuple), odd=st.integers(0)),
    st.builds(FileRow, **WHEN, file=st.text(), size=st.integers(0)),
    st.builds(EventRow, **WHEN, text=st.text(), took=st.floats(0)),
)
ROWS = METRICS | OTHERS


def same(one: Any, other: Any) -> bool:
    """Equal and of one type, where NaN equals NaN and minus zero does not equal zero."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON: jq, pandas and browsers refuse the whole file")


@given(row=ROWS)
def test_a_row_comes_back_as_it_was_also_with_nan_infinities_and_arrays(row: Record) -> None:
    back = from_json(to_json(row))
    assert type(back) is type(row)
    for field in dataclasses.fields(row):
        was, found = getattr(row, field.name), getattr(back, field.name)
        assert same(round(was, 6) if field.name == "seconds" else was, found), field.name


@given(row=ROWS)
def test_a_row_is_one_line_of_json_that_any_reader_takes(row: Record) -> None:
    line = to_json(row)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert json.loads(line, parse_constant=refuse)["name"] == row.name


@given(row=ROWS)
def test_writing_what_was_read_gives_the_same_line(row: Record) -> None:
    line = to_json(row)
    assert to_json(from_json(line)) == line


def test_every_kind_of_row_is_among_those_tested() -> None:
    tried = {MetricRow, ImageRow, TextRow, TableRow, HistogramRow, FileRow, EventRow}
    assert set(get_args(Record)) == tried


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, '"nan"'),
        (math.inf, '"inf"'),
        (-math.inf, '"-inf"'),
        ([1.0, [math.nan, -math.inf]], '[1.0, ["nan", "-inf"]]'),
        (0.1, "0.1"),
    ],
)
def test_the_form_of_a_value_is_the_one_that_old_files_have(value: Any, text: str) -> None:
    line = to_json(MetricRow("val/loss", 10, 1, value, "eval", 2.5))
    assert line == (f'{{"name": "val/loss", "step": 10, "epoch": 1, "value": {text}, "kind": "eval", "seconds": 2.5}}')


def test_the_text_nan_in_a_table_is_not_the_number() -> None:
    row = TableRow("val/worst", 1, 0, 0.0, ("word", "loss"), (("nan", math.nan), ("inf", -math.inf)))
    back = from_json(to_json(row))
    assert isinstance(back, TableRow)
    assert back.rows[0][0] == "nan"
    assert isinstance(back.rows[0][1], float)
    assert math.isnan(back.rows[0][1])
    assert back.rows[1] == ("inf", -math.inf)


METRIC = {"name": "a", "step": 1, "epoch": 0, "value": 0.5, "kind": "step", "seconds": 0.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "hologram"},
        {"kind": None},
        {"kind": ["step"]},
        {"value": None},
        {"value": True},
        {"value": "high"},
        {"value": {"a": 1}},
        {"value": [1.0, [None]]},
        {"name": 7},
        {"step": "10"},
        {"step": 1.5},
        {"step": None},
        {"epoch": "one"},
        {"surplus": 1},
    ],
    ids=str,
)
def test_a_line_that_says_no_row_is_refused_and_not_half_believed(wrong: dict[str, Any]) -> None:
    assert from_json(json.dumps(METRIC)) == MetricRow("a", 1, 0, 0.5, "step", 0.0)
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(json.dumps({**METRIC, **wrong}))


@pytest.mark.parametrize("missing", METRIC)
def test_a_row_that_lacks_a_field_is_refused(missing: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(json.dumps({key: value for key, value in METRIC.items() if key != missing}))


@given(line=st.text() | st.sampled_from(["", "null", "3", "[]", '"kind"', "{}", "[1", '{"kind": "text"}']))
def test_any_text_that_is_no_row_raises_what_readers_expect(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(line)


def test_a_picture_is_read_from_memory_or_from_the_runs_folder(tmp_path: Path) -> None:
    fresh = ImageRow("val/sample", 1, 0, 0.0, 2, 2, file="media/a.png", png=b"picture")
    assert fresh.read(None) == b"picture"
    back = from_json(to_json(fresh))
    assert isinstance(back, ImageRow)
    assert back.read(None) == b""
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.png").write_bytes(b"picture")
    assert back.read(tmp_path) == b"picture"


def test_a_row_is_a_frozen_value() -> None:
    row = MetricRow("a", 1, 0, 0.5, "step", 0.0)
    assert row == MetricRow("a", 1, 0, 0.5, "step", 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.step = 2  # type: ignore[misc]


@given(st.text(), st.integers(0), st.integers(0), st.floats(), st.floats(0, 1e9))
def test_a_line_is_what_any_json_writer_makes_of_the_row(
    name: str, step: int, epoch: int, value: float, seconds: float
) -> None:
    line = to_json(MetricRow(name, step, epoch, value, "step", seconds))
    shown = value if math.isfinite(value) else str(value)
    row = {"name": name, "step": step, "epoch": epoch, "value": shown, "kind": "step", "seconds": round(seconds, 6)}
    assert line == json.dumps(row)
