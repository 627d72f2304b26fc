"""How long a run says that it will take, against how long it took: on a clock that moves only when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch.time_remaining import TimeRemaining
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Loop, Result, SupervisedTask
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import CE, at_step, fit, set_time, sgd


class Counting(SupervisedTask):
    """Ten tokens a sample."""

    def __init__(self) -> None:
        super().__init__(TinyModel(), CE, sgd)

    def count(self, batch: Any) -> tuple[int, int]:
        return len(batch[0]), 10 * len(batch[0])


class SlowTime:
    """The run's own clock: a step takes a second and an evaluation batch ten, unless it is told otherwise."""

    def __init__(self, step: float = 1.0, first_step: float | None = None) -> None:
        self.now = 0.0
        self.step = step
        self.first_step = step if first_step is None else first_step
        self.steps = 0

    def callback(self) -> LambdaCallback:
        def pass_step(run: Any) -> None:
            self.now += self.step if self.steps else self.first_step
            self.steps += 1

        def pass_eval_batch(run: Any) -> None:
            self.now += 10.0

        return LambdaCallback(
            name="slow time",
            on_setup=lambda run: set_time(run, lambda: self.now),
            on_train_step_start=pass_step,
            on_eval_batch_start=pass_eval_batch,
        )


def fit_slowly(*callbacks: Any, time: SlowTime | None = None, **options: Any) -> Result:
    slow, given = (time or SlowTime()).callback(), {"max_duration": "12st", "log_every": "1st", **options}
    result = fit(slow, TimeRemaining(), *callbacks, model=Counting(), **given)
    assert result.failures == ()
    return result


def truth(result: Result, end: float | None = None) -> list[float]:
    """What was left at each row, as it turned out."""
    elapsed = result.history["time/elapsed"]
    return [(result.clock.seconds if end is None else end) - seconds for seconds in elapsed]


@pytest.mark.parametrize("max_duration", ["12st", "3ep", "96sp", "960tok", "12s"])
def test_it_is_right_in_every_unit(max_duration: str) -> None:
    result = fit_slowly(max_duration=max_duration)
    assert result.clock.step == 12
    assert result.history["time/elapsed"] == list(range(1, 13))
    assert result.history["time/remaining"] == pytest.approx(list(range(11, -1, -1)))
    assert result.history.steps("time/remaining") == list(range(1, 13))


@pytest.mark.parametrize(
    ("max_duration", "eval_every"),
    [("3ep", "1ep"), ("3ep", "4st"), ("12st", "1ep"), ("12st", "4st"), ("96sp", "4st"), ("960tok", "1ep")],
)
def test_evaluations_that_are_still_to_come_are_in_it(max_duration: str, eval_every: str) -> None:
    result = fit_slowly(max_duration=max_duration, eval_every=eval_every, val=tiny_data(2))
    assert result.clock.seconds == 12 + 3 * 20
    # From the first evaluation on, which is after step 4, it is known how long one takes.
    assert result.history["time/remaining"][4:] == pytest.approx(truth(result)[4:])


def test_the_last_evaluation_counts_where_it_falls_on_no_interval_of_evaluations() -> None:
    result = fit_slowly(max_duration="10st", eval_every="4st", val=tiny_data(2), train=tiny_data(20))
    assert result.clock.seconds == 10 + 3 * 20  # after the steps 4, 8 and 10
    assert result.history["time/remaining"][4:9] == pytest.approx(truth(result)[4:9])


def test_before_the_first_evaluation_only_training_counts() -> None:
    result = fit_slowly(max_duration="12st", eval_every="4st", val=tiny_data(2))
    assert result.history["time/remaining"][:4] == pytest.approx([11, 10, 9, 8])


def test_a_slow_start_is_forgotten_at_the_second_interval() -> None:
    result = fit_slowly(time=SlowTime(first_step=101.0))
    assert result.history["time/remaining"][0] == pytest.approx(11 * 101)
    assert result.history["time/remaining"][1:] == pytest.approx(truth(result)[1:])


def test_a_loader_without_a_length_is_known_from_the_second_epoch_on() -> None:
    class Unknown:
        def __iter__(self) -> Iterator[Any]:
            return iter(tiny_data())

    result = fit_slowly(train=Unknown(), max_duration="3ep")
    assert result.history.steps("time/elapsed") == list(range(1, 13))
    assert result.history.steps("time/remaining") == list(range(5, 13))
    assert result.history["time/remaining"] == pytest.approx(list(range(7, -1, -1)))


def test_without_an_end_there_is_only_the_time_so_far() -> None:
    model = TinyModel()
    callbacks = [SlowTime().callback(), TimeRemaining()]
    with Loop(model, sgd, callbacks=callbacks, log_every="1st", folder=False, device="cpu") as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.run.clock.step == 6:
                break
    history = loop.run.history
    assert history["time/elapsed"] == [1, 2, 3, 4, 5, 6]
    assert "time/remaining" not in history


def test_after_a_resume_the_time_so_far_is_that_of_all_and_the_pace_is_todays(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "train": tiny_data(12)}
    fit_slowly(Checkpointer(every="4st", at_end=False), max_duration="6st", **options)
    again = fit_slowly(Checkpointer(every="4st"), time=SlowTime(step=3.0), resume="auto", **options)
    # Four steps of a second, then eight of three seconds.
    assert again.history["time/elapsed"] == [1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28]
    assert again.history["time/remaining"][4:] == pytest.approx([21, 18, 15, 12, 9, 6, 3, 0])


def test_after_a_resume_the_pace_so_far_stands_for_evaluations_until_one_was_made(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "eval_every": "4st", "val": tiny_data(2), "train": tiny_data(16)}
    fit_slowly(Checkpointer(every="6st", at_end=False), max_duration="9st", **options)
    again = fit_slowly(Checkpointer(every="6st"), max_duration="16st", resume="auto", **options)
    steps, values = again.history.steps("time/remaining"), again.history["time/remaining"]
    remaining, elapsed = dict(zip(steps, values, strict=True)), again.history["time/elapsed"]
    assert elapsed[6] == 6 + 20 + 1  # it went on after step 6, with one evaluation behind it
    assert remaining[7] == pytest.approx(9 * 27 / 7)
    assert remaining[9] == pytest.approx(truth(again)[8])


def test_a_run_that_goes_on_inside_an_epoch_knows_how_far_it_is(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "max_duration": "3ep"}
    stop = at_step(6, lambda run: run.stop("now"))
    fit_slowly(Checkpointer(every="5st", at_end=False), stop, **options)
    again = fit_slowly(Checkpointer(every="5st"), resume="auto", **options)
    assert again.history.steps("time/remaining") == list(range(1, 13))
    assert again.history["time/remaining"] == pytest.approx(list(range(11, -1, -1)))


def test_a_longer_run_takes_longer_from_the_next_row_on() -> None:
    result = fit_slowly(at_step(6, lambda run: setattr(run, "max_duration", "24st")))
    assert result.history["time/remaining"][:5] == pytest.approx([11, 10, 9, 8, 7])
    assert result.history["time/remaining"][5:] == pytest.approx(list(range(18, -1, -1)))


def test_one_that_joins_a_run_under_way_measures_from_there_on() -> None:
    monitor = TimeRemaining()
    events: list[Any] = [
        ("setup", {"step": 50, "seconds": 500.0}),
        ("metrics_ready", {"step": 51, "seconds": 501.0}),
        ("metrics_ready", {"step": 52, "seconds": 503.0}),
    ]
    logged = drive(monitor, events, max_duration="60st").logged
    assert logged["time/elapsed"] == [501.0, 503.0]
    assert logged["time/remaining"] == [16.0]


def test_it_hears_no_event_of_a_step() -> None:
    assert [event for event in STEP_EVENTS if overridden(TimeRemaining(), f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(TimeRemaining(), scope)] == []
