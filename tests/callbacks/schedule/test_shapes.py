"""The shapes as plain functions: where they begin and end, and what lies between."""

from __future__ import annotations

import pytest

from hookline.callbacks.schedule.shapes import OPTIONS, Shape


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("warmup", [0, 3])
def test_no_step_of_a_run_has_a_rate_of_zero(kind: str, warmup: int) -> None:
    shape = Shape(kind, total=12, warmup=warmup, decay=4)
    factors = [shape(move) for move in range(12)]
    assert min(factors) > 0
    assert max(factors) == 1.0


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "constant"])
def test_a_schedule_that_has_ended_stays_at_its_end(kind: str) -> None:
    shape = Shape(kind, total=12, decay=4, end=0.25)
    assert [shape(move) for move in (12, 13, 1000)] == [0.25] * 3


def test_a_warm_up_as_long_as_the_run_never_falls() -> None:
    assert [Shape("linear", total=4, warmup=4)(move) for move in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_constant_rate_needs_no_length() -> None:
    assert [Shape("constant", warmup=2, start=0.5)(move) for move in (0, 1, 2, 10**9)] == [0.75, 1.0, 1.0, 1.0]
