from __future__ import annotations

import math

import pytest

from hookline.report.series import Series


def series(*rows: tuple[int, float]) -> Series:
    found = Series("val/loss", "eval")
    for step, value in rows:
        found.add(step, 0, float(step), value)
    return found


@pytest.mark.parametrize(
    "row", [("1", 0, 0.0, 0.0), (1, 1.5, 0.0, 0.0), (1, 0, None, 0.0), (1, 0, 0.0, "x"), (2**70, 0, 0.0, 0.0)]
)
def test_a_row_with_something_else_in_it_leaves_no_half_row_behind(row: tuple[object, ...]) -> None:
    found = series((1, 0.5))
    with pytest.raises((TypeError, OverflowError)):
        found.add(*row)  # type: ignore[arg-type]
    assert [len(column) for column in (found.steps, found.epochs, found.seconds, found.values)] == [1, 1, 1, 1]


def test_rows_out_of_order_are_put_in_order_and_the_later_one_of_a_step_counts() -> None:
    found = series((10, 1.0), (30, 3.0), (20, 2.0), (10, 9.0)).ordered()
    assert list(found.steps) == [10, 20, 30]
    assert list(found.values) == [9.0, 2.0, 3.0]
    assert list(found.seconds) == [10.0, 20.0, 30.0]


def test_rows_in_order_are_not_copied() -> None:
    found = series((10, 1.0), (20, 2.0))
    assert found.ordered() is found


def test_the_extremes_pass_over_what_is_no_number() -> None:
    found = series((1, math.nan), (2, 2.0), (3, math.inf), (4, -1.0), (5, -math.inf))
    assert (found.lowest(), found.highest()) == (3, 1)
    assert series((1, math.nan)).lowest() is None
    assert series().highest() is None
