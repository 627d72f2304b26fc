"""The shapes as plain functions: where they begin and end, and what lies between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.callbacks.schedule._shapes import OPTIONS, Shape


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("warmup", [0, 3])
def test_no_step_of_a_run_has_a_rate_of_zero(kind: str, warmup: int) -> None:
    shape = Shape(kind, total=12, warmup=warmup, decay=4)
    factors = [shape(move) for move in range(12)]
    assert min(factors) > 0
    assert max(factors) == 1.0


@given(st.sampled_from(sorted(OPTIONS)), st.integers(2, 200), st.integers(1, 30), st.data())
def test_no_step_has_a_rate_of_zero_however_long_the_run_is(
    kind: str, total: int, cycles: int, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, total))
    decay = data.draw(st.integers(0, total - warmup))
    shape = Shape(kind, total=total, warmup=warmup, decay=decay, cycles=cycles)
    assert min(shape(move) for move in range(total)) > 0


def test_a_restart_is_at_the_top_for_every_number_of_cycles() -> None:
    for cycles in range(1, 31):
        shape = Shape("cosine_restarts", total=10 * cycles, cycles=cycles)
        assert [shape(10 * cycle) for cycle in range(cycles)] == [1.0] * cycles


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "constant"])
def test_a_schedule_that_has_ended_stays_at_its_end(kind: str) -> None:
    shape = Shape(kind, total=12, decay=4, end=0.25)
    assert [shape(move) for move in (12, 13, 1000)] == [0.25] * 3


def test_a_warm_up_as_long_as_the_run_never_falls() -> None:
    assert [Shape("linear", total=4, warmup=4)(move) for move in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_constant_rate_needs_no_length() -> None:
    assert [Shape("constant", warmup=2, start=0.5)(move) for move in (0, 1, 2, 10**9)] == [0.75, 1.0, 1.0, 1.0]
