"""On the axes of epochs and of time every step has its place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.report.clock import POINTS, clock_of
from hookline.report.series import Series


def series(*rows: tuple[int, int, float]) -> Series:
    found = Series("train/loss", "step")
    for step, epoch, seconds in rows:
        found.add(step, epoch, seconds, 0.0)
    return found


def test_an_epoch_ends_where_its_number_changes_and_steps_between_are_fractions() -> None:
    clock = clock_of([series((25, 0, 1.0), (50, 1, 2.0), (75, 1, 3.0), (100, 2, 4.0), (125, 2, 5.0))])
    assert dict(zip(clock["step"], clock["epoch"], strict=True)) == {0: 0, 25: 0.5, 50: 1, 75: 1.5, 100: 2, 125: 2.5}


def test_the_edge_of_an_epoch_is_known_from_any_metric() -> None:
    clock = clock_of([series((30, 0, 3.0), (60, 1, 6.0)), series((40, 1, 4.0), (80, 2, 8.0))])
    assert dict(zip(clock["step"], clock["epoch"], strict=True))[40] == 1
    assert dict(zip(clock["step"], clock["epoch"], strict=True))[60] == 1.5


def test_an_evaluation_that_took_long_does_not_move_its_step() -> None:
    clock = clock_of([series((10, 1, 500.0)), series((10, 1, 1.0), (20, 2, 502.0))])
    assert clock["seconds"] == [0.0, 1.0, 502.0]


def test_a_run_that_has_no_epochs_stays_at_zero() -> None:
    assert clock_of([series((10, 0, 1.0), (20, 0, 2.0))])["epoch"] == [0, 0, 0]


def test_nothing_logged_has_a_clock_too() -> None:
    assert clock_of([]) == {"step": [0], "epoch": [0.0], "seconds": [0.0]}


@settings(deadline=None)
@given(
    jumps=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2), st.floats(0, 100)), max_size=60),
    more=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 90), st.floats(0, 1e6)), max_size=5),
)
def test_the_clock_never_runs_backwards(
    jumps: list[tuple[int, int, float]], more: list[tuple[int, int, float]]
) -> None:
    rows, (step, epoch, seconds) = [], (0, 0, 0.0)
    for row in jumps:
        step, epoch, seconds = step + row[0], epoch + row[1], seconds + row[2]
        rows.append((step, epoch, seconds))
    clock = clock_of([series(*rows), series(*more)])
    assert all(before < after for before, after in pairwise(clock["step"]))
    assert all(before <= after for before, after in pairwise(clock["seconds"]))
    if not more:
        assert all(before <= after for before, after in pairwise(clock["epoch"]))
        assert clock["epoch"][-1] < epoch + 1 or not epoch


def test_a_long_run_has_a_clock_of_few_points_with_both_ends() -> None:
    clock = clock_of([series(*((step, step // 5_000, float(step)) for step in range(1, 100_001)))])
    assert len(clock["step"]) <= POINTS
    assert (clock["step"][0], clock["step"][-1], clock["epoch"][-1]) == (0, 100_000, 20)
