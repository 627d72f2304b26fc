"""Which rank is slow: the arithmetic, and what is timed, on a clock that moves only when it is told to."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookline.callbacks import LambdaCallback
from hookline.callbacks.watch import slow_rank_monitor
from hookline.callbacks.watch.slow_rank_monitor import PARTS, SlowRankMonitor, WorkTimer, between_events, slowness
from hookline.errors import ArgumentError
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Result
from hookline.testing import tiny_data
from tests.support import fit


def monitor(**options: Any) -> SlowRankMonitor:
    """One that times its steps, as it does when there are other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        return SlowRankMonitor(**options)


# ------------------------------------------------------------------------------------ the arithmetic


def work(*ranks: tuple[float, float, float]) -> list[list[float]]:
    return [list(row) for row in zip(*ranks, strict=True)]


def test_of_two_ranks_the_slow_one_is_compared_with_the_fast_one() -> None:
    found = slowness(work((1.0, 2.0, 1.0), (1.0, 6.0, 1.0)))
    assert found is not None
    assert (found.slowest, found.slowdown, found.behind, found.part) == (1, 2.0, 4.0, "forward")


def test_of_many_ranks_it_is_compared_with_the_median() -> None:
    found = slowness(work((1.0, 1.0, 0.0), (1.0, 2.0, 0.0), (9.0, 1.0, 0.0), (1.0, 1.5, 0.0), (1.0, 1.5, 0.0)))
    assert found is not None
    assert (found.slowest, found.slowdown, found.behind, found.part) == (2, 4.0, 8.0, "data")


def test_a_rank_on_which_it_was_switched_off_is_left_out() -> None:
    found = slowness(work((0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 2.0)))
    assert found is not None
    assert (found.slowest, found.slowdown, found.part) == (2, 2.0, "update")
    assert slowness(work((0.0, 0.0, 0.0), (1.0, 1.0, 0.0))) is None


# ------------------------------------------------------------------------------------ what is timed


class Time:
    """It moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def passes(self, seconds: float) -> Any:
        def act(run: Any) -> None:
            self.now += seconds

        return act


def fit_timed(monkeypatch: pytest.MonkeyPatch, time: Time, *callbacks: Any, **options: Any) -> Result:
    monkeypatch.setattr(
        "hookline.callbacks.watch.slow_rank_monitor.timer_of",
        lambda device: WorkTimer(lambda: time.now, lambda began, ended: ended - began),
    )
    given = {"val": tiny_data(2), "max_duration": "1ep", "log_every": "2st", **options}
    result = fit(*callbacks, **given)
    assert result.failures == ()
    return result


def test_data_forward_and_update_are_timed_and_the_backward_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    slow = LambdaCallback(
        name="slow",
        on_batch_fetch_end=time.passes(1.0),
        on_forward_start=time.passes(2.0),
        on_backward_end=time.passes(100.0),
        on_gradients_ready=time.passes(100.0),
        on_optimizer_step_end=time.passes(4.0),
    )
    result = fit_timed(monkeypatch, time, slow, monitor(), eval_every=None)
    rows: Any = result.history["ranks/work"]
    assert result.history.steps("ranks/work") == [2, 4]
    assert [[column[0] for column in row] for row in rows] == [[2.0, 4.0, 8.0]] * 2
    # There is no other rank to compare with: it is said of none that it is slow.
    assert "ranks/slowest" not in result.history


def test_each_batch_of_a_window_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    slow = LambdaCallback(name="slow", on_batch_fetch_end=time.passes(1.0), on_forward_start=time.passes(2.0))
    result = fit_timed(monkeypatch, time, slow, monitor(), eval_every=None, accumulate=2)
    rows: Any = result.history["ranks/work"]
    assert [[column[0] for column in row] for row in rows] == [[4.0, 8.0, 0.0]]


def test_a_slow_hook_after_the_step_counts_until_the_next_batch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    slow = LambdaCallback(name="slow", on_train_step_end=time.passes(3.0))
    result = fit_timed(monkeypatch, time, monitor(), slow, eval_every=None, log_every="4st")
    rows: Any = result.history["ranks/work"]
    assert rows[0][PARTS.index("update")][0] >= 9.0  # of four steps all but at most the last


def test_the_batches_of_an_evaluation_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    slow = LambdaCallback(name="slow", on_eval_batch_start=time.passes(50.0), on_batch_fetch_end=time.passes(1.0))
    result = fit_timed(monkeypatch, time, slow, monitor(), eval_every="1st")
    rows: Any = result.history["ranks/work"]
    assert sum(row[PARTS.index("data")][0] for row in rows) == 4.0
    assert max(max(map(max, row)) for row in rows) < 50.0


def test_it_hears_no_event_of_a_step_when_there_is_one_process() -> None:
    def heard(one: SlowRankMonitor) -> set[str]:
        return {event for event in STEP_EVENTS if overridden(one, f"on_{event}")}

    assert heard(SlowRankMonitor()) == set()
    assert "backward_start" in heard(monitor())


def test_a_device_is_asked_what_it_has_done_and_never_waited_for() -> None:
    """As on a GPU, whose events are known only later."""
    done: set[int] = set()
    moments: list[Any] = []

    class Event:
        def __init__(self) -> None:
            self.number = len(moments)
            moments.append(self)

        def query(self) -> bool:
            return self.number in done

        def elapsed_time(self, other: Any) -> float:
            return 1000.0 * (other.number - self.number)

    timer = WorkTimer(Event, between_events)
    timer.begin("data")
    timer.begin("forward")
    timer.end()
    assert timer.take() == [0.0, 0.0, 0.0]
    done.update(range(2))
    timer.begin("data")
    assert timer.take() == [1.0, 0.0, 0.0]
    done.update(range(9))
    timer.end()
    assert timer.take() == [1.0, 1.0, 0.0]


def test_the_timer_of_the_cpu_is_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 3.5])
    monkeypatch.setattr(slow_rank_monitor, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    timer = slow_rank_monitor.timer_of(torch.device("cpu"))
    timer.begin("data")
    timer.end()
    assert timer.take() == [2.5, 0.0, 0.0]


# ------------------------------------------------------------------------------------ the warning


def warned(caplog: pytest.LogCaptureFixture, slow: SlowRankMonitor, *rows: list[list[float]]) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="hookline"):
        for row in rows:
            found = slowness(row)
            assert found is not None
            slow._judge(SimpleNamespace(rank=0), found, 0.25)  # type: ignore[arg-type]
    return [record.getMessage() for record in caplog.records]


EVEN = work((0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0))
ONE = work((0.0, 1.0, 0.0), (3.0, 1.0, 0.0), (0.0, 1.0, 0.0))
TWO = work((0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 1.0, 3.0))


def test_a_rank_that_stays_slow_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    said = warned(caplog, monitor(patience=3), ONE, ONE, ONE, ONE, ONE)
    assert len(said) == 1
    assert "rank 1 is slow" in said[0]
    assert "4.0 times, most of it waiting for data" in said[0]
    assert "25 % of the time" in said[0]


def test_it_is_named_again_after_it_had_caught_up(caplog: pytest.LogCaptureFixture) -> None:
    assert len(warned(caplog, monitor(patience=1), ONE, ONE, EVEN, ONE)) == 2


def test_a_slow_interval_now_and_then_is_nothing_to_warn_about(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, monitor(patience=2), ONE, EVEN, ONE, EVEN) == []


def test_another_slow_rank_each_time_is_chance(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, monitor(patience=2), ONE, TWO, ONE, TWO) == []


def test_what_is_below_the_factor_is_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, monitor(patience=1, factor=4), ONE, ONE) == []


@pytest.mark.parametrize("factor", [1, 0.5, float("nan"), float("inf"), True, "2"])
def test_a_factor_that_is_none_is_refused(factor: Any) -> None:
    with pytest.raises(ArgumentError, match=r"SlowRankMonitor\(factor.*\): must be"):
        SlowRankMonitor(factor=factor)


@pytest.mark.parametrize("patience", [0, 1.5, True, "3st"])
def test_a_patience_that_is_no_number_of_intervals_is_refused(patience: Any) -> None:
    with pytest.raises(ArgumentError, match=r"SlowRankMonitor\(patience.*\): must be"):
        SlowRankMonitor(patience=patience)
