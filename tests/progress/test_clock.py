"""The clock counts, keeps time without downtime, and goes on after a resume where it was."""

from __future__ import annotations

import doctest
import json
import sys
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from hookline.errors import DurationError, NotAvailableError, SetupError
from hookline.progress import Clock, Duration, EvalClock, clock


class Time:
    """A clock on the wall that only moves when it is told to."""

    def __init__(self) -> None:
        self.value = 1000.0

    def __call__(self) -> float:
        return self.value


def test_a_new_clock_is_at_zero_everywhere() -> None:
    c = Clock()
    assert (c.epoch, c.step, c.batch, c.sample, c.token, c.seconds, c.updates) == (0, 0, 0, 0, 0, 0.0, {})
    assert (c.step_in_epoch, c.batch_in_epoch, c.sample_in_epoch, c.token_in_epoch, c.seconds_in_epoch) == (0,) * 5


def test_an_evaluation_may_end_while_another_thread_reads_its_clock() -> None:
    """The watchdog of several ranks reads it in its own thread: the evaluation may end between any two lines."""

    def end_before(line: int) -> Any:
        lines = count()

        def trace(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code.co_name == "eval" and event == "line" and next(lines) == line:
                read.end_eval()
            return trace

        return trace

    for line in range(3):
        read = Clock()
        read.begin_eval()
        earlier = sys.gettrace()
        sys.settrace(end_before(line))
        try:
            with suppress(NotAvailableError):
                _ = read.eval
        finally:
            sys.settrace(earlier)


def test_a_misspelt_counter_is_an_error_and_not_a_new_attribute() -> None:
    with pytest.raises(AttributeError):
        Clock().steps = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        EvalClock().batches = 1  # type: ignore[attr-defined]


def test_time_runs_from_start_to_pause_and_adds_up_without_the_downtime() -> None:
    now = Time()
    c = Clock(now)
    now.value += 5
    assert c.seconds == 0
    c.start()
    now.value += 2
    assert c.seconds == 2
    c.pause()
    now.value += 100
    assert c.seconds == 2
    c.start()
    now.value += 3
    assert c.seconds == 5


def test_starting_or_pausing_twice_neither_loses_nor_adds_time() -> None:
    now = Time()
    c = Clock(now)
    c.start()
    now.value += 2
    c.start()
    now.value += 1
    c.pause()
    now.value += 10
    c.pause()
    assert c.seconds == 3


def test_the_epochs_counts_are_still_there_in_its_end_hooks() -> None:
    now = Time()
    c = Clock(now)
    c.start()
    for epoch in range(2):
        c.mark_epoch()
        for _ in range(3 + epoch):
            c.step += 1
            c.batch += 2
            c.sample += 8
            c.token += 100
            now.value += 1
        c.epoch += 1
    assert c.epoch == 2
    assert (c.step_in_epoch, c.batch_in_epoch, c.sample_in_epoch, c.token_in_epoch) == (4, 8, 32, 400)
    assert c.seconds_in_epoch == 4
    assert (c.step, c.batch, c.sample, c.token, c.seconds) == (7, 14, 56, 700, 7)
    c.mark_epoch()
    assert (c.step_in_epoch, c.batch_in_epoch, c.sample_in_epoch, c.token_in_epoch, c.seconds_in_epoch) == (0,) * 5


def test_reading_the_evaluation_outside_of_one_says_when_it_is_there() -> None:
    with pytest.raises(NotAvailableError, match="from eval_start to eval_end or from predict_start to predict_end"):
        _ = Clock().eval
    with pytest.raises(NotAvailableError):
        Clock().end_eval()
    assert not hasattr(Clock(), "eval")


def test_an_evaluation_inside_an_evaluation_has_its_own_clock() -> None:
    now = Time()
    c = Clock(now)
    outer = c.begin_eval()
    c.eval.batch += 1
    c.eval.sample += 4
    c.eval.token += 9
    now.value += 2
    inner = c.begin_eval()
    assert c.eval is inner
    assert (inner.batch, inner.sample, inner.token, inner.seconds) == (0, 0, 0, 0)
    now.value += 3
    assert c.end_eval() is inner
    assert c.eval is outer
    assert (outer.batch, outer.sample, outer.token, outer.seconds) == (1, 4, 9, 5)
    assert c.end_eval() is outer
    with pytest.raises(NotAvailableError):
        _ = c.eval


def test_the_time_of_an_evaluation_that_is_over_stands_still() -> None:
    now = Time()
    c = Clock(now)
    kept = c.begin_eval()
    now.value += 2
    c.end_eval()
    now.value += 50
    kept.end()
    assert kept.seconds == 2


def test_an_evaluation_does_not_move_the_training_counts() -> None:
    c = Clock()
    c.begin_eval().batch += 5
    assert c.batch == 0


def test_elapsed_gives_the_total_in_each_unit() -> None:
    now = Time()
    c = Clock(now)
    c.epoch, c.step, c.batch, c.sample, c.token = 1, 2, 3, 4, 5
    c.start()
    now.value += 6
    assert [c.elapsed(unit) for unit in ("ep", "st", "sp", "tok", "s")] == [1, 2, 4, 5, 6]


def test_elapsed_in_a_share_or_an_unknown_unit_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DurationError, match=r"resolve it first with \.of\(max_duration\)"):
        Clock().elapsed("dur")
    with pytest.raises(DurationError, match="no unit 'ba': it has ep, st, sp, tok, s"):
        Clock().elapsed("ba")
    with pytest.raises(DurationError, match=r"\.of\(max_duration\)"):
        Clock().reached(Duration.parse("0.5dur"))


@pytest.mark.parametrize(
    ("name", "text"), [("epoch", "10ep"), ("step", "10st"), ("sample", "10sp"), ("token", "10tok")]
)
def test_a_duration_is_reached_exactly_when_the_count_is(name: str, text: str) -> None:
    c, d = Clock(), Duration.parse(text)
    setattr(c, name, 9)
    assert not c.reached(d)
    setattr(c, name, 10)
    assert c.reached(d)
    setattr(c, name, 11)
    assert c.reached(d)


def test_a_time_is_reached_by_running_and_not_by_waiting() -> None:
    now = Time()
    c, d = Clock(now), Duration.parse("1m")
    now.value += 100
    assert not c.reached(d)
    c.start()
    now.value += 59.5
    assert not c.reached(d)
    now.value += 0.5
    assert c.reached(d)


def test_ranks_with_different_clocks_decide_alike_about_time_once_they_agree() -> None:
    now = Time()
    c = Clock(now)
    c.start()
    now.value += 61
    assert c.reached(Duration.parse("1m"))
    c.agree_seconds(59.0)
    assert not c.reached(Duration.parse("1m"))
    assert c.elapsed("s") == 59.0
    assert c.seconds == 61, "what is shown and saved stays the process's own"
    c.load_state_dict(Clock().state_dict())
    assert c.elapsed("s") == 0, "an agreement does not outlive the time that it was about"


def test_a_clock_that_is_saved_and_loaded_goes_on_where_it_was() -> None:
    now = Time()
    c = Clock(now)
    c.start()
    c.epoch, c.step, c.batch, c.sample, c.token = 1, 20, 40, 320, 999
    now.value += 10
    c.mark_epoch()
    c.step, c.batch, c.sample, c.token = 25, 50, 400, 1500
    c.updates["main"] = 24
    now.value += 3
    c.begin_eval()
    saved = json.dumps(c.state_dict())

    later = Time()
    later.value = 5.0
    resumed = Clock(later)
    resumed.load_state_dict(json.loads(saved))
    assert resumed.state_dict() == c.state_dict()
    assert (resumed.step_in_epoch, resumed.batch_in_epoch) == (5, 10)
    assert (resumed.sample_in_epoch, resumed.token_in_epoch, resumed.seconds_in_epoch) == (80, 501, 3)
    assert not hasattr(resumed, "eval"), "a running evaluation is not part of the state"
    later.value += 100
    assert resumed.seconds == 13, "a loaded clock stands until it is started"
    resumed.start()
    later.value += 2
    assert resumed.seconds == 15
    assert resumed.seconds_in_epoch == 5


def test_loading_into_a_running_clock_goes_on_from_the_saved_time() -> None:
    now = Time()
    c = Clock(now)
    c.start()
    now.value += 50
    saved = {**c.state_dict(), "seconds": 7.0}
    c.load_state_dict(saved)
    assert c.seconds == 7
    now.value += 1
    assert c.seconds == 8


def test_a_saved_state_is_not_changed_by_the_clock_it_came_from_or_went_to() -> None:
    c, other = Clock(), Clock()
    c.updates["main"] = 1
    saved = c.state_dict()
    c.updates["main"] = 2
    c.mark_epoch()
    other.load_state_dict(saved)
    other.updates["main"] = 3
    assert saved["updates"] == {"main": 1}


@pytest.mark.parametrize("missing", ["token", "updates", "seconds", "epoch_start"])
def test_an_incomplete_state_is_refused_and_leaves_the_clock_as_it_was(missing: str) -> None:
    saved = Clock().state_dict()
    del saved[missing]
    c = Clock()
    c.step = 5
    with pytest.raises(SetupError, match=f"the saved clock lacks {missing}"):
        c.load_state_dict(saved)
    with pytest.raises(SetupError, match="'epoch_start' of the saved clock lacks step, batch"):
        c.load_state_dict({**Clock().state_dict(), "epoch_start": {}})
    assert c.step == 5


def test_a_clock_prints_what_it_counts() -> None:
    now = Time()
    c = Clock(now)
    c.step = 3
    assert repr(c) == "Clock(epoch=0, step=3, batch=0, sample=0, token=0, seconds=0.0)"
    c.start()
    now.value += 1.23456
    assert repr(c) == "Clock(epoch=0, step=3, batch=0, sample=0, token=0, seconds=1.235, running)"
    assert repr(c.begin_eval()) == "EvalClock(batch=0, sample=0, token=0, seconds=0.0)"


def test_the_examples_in_the_documentation_work() -> None:
    assert doctest.testmod(clock).failed == 0
