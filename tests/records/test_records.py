"""A row of ``metrics.jsonl`` is one line of strict JSON and comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.records import MetricRow, from_json, to_json

NUMBERS = st.floats()
VALUES = NUMBERS | st.recursive(st.lists(NUMBERS, max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=8)
ROWS = st.builds(
    MetricRow,
    name=st.text(),
    step=st.integers(0, 10**12),
    epoch=st.integers(0, 10**6),
    value=VALUES,
    kind=st.sampled_from(["step", "epoch", "eval"]),
    seconds=st.floats(0, 1e9),
)


def same(one: Any, other: Any) -> bool:
    """Equal, where NaN equals NaN and minus zero does not equal zero."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return (math.isnan(one) and math.isnan(other)) or (
        one == other and math.copysign(1, one) == math.copysign(1, other)
    )


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON: jq, pandas and browsers refuse the whole file")


@given(row=ROWS)
def test_a_row_comes_back_as_it_was_also_with_nan_infinities_and_arrays(row: MetricRow) -> None:
    back = from_json(to_json(row))
    assert same(row.value, back.value)
    assert back.seconds == round(row.seconds, 6)
    plain = {"value": 0.0, "seconds": 0.0}
    assert dataclasses.replace(back, **plain) == dataclasses.replace(row, **plain)


@given(row=ROWS)
def test_a_row_is_one_line_of_json_that_any_reader_takes(row: MetricRow) -> None:
    line = to_json(row)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert json.loads(line, parse_constant=refuse)["name"] == row.name


@given(row=ROWS)
def test_writing_what_was_read_gives_the_same_line(row: MetricRow) -> None:
    line = to_json(row)
    assert to_json(from_json(line)) == line


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


def test_a_row_is_a_frozen_value() -> None:
    row = MetricRow("a", 1, 0, 0.5, "step", 0.0)
    assert row == MetricRow("a", 1, 0, 0.5, "step", 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.step = 2  # type: ignore[misc]
