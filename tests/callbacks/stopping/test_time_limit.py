"""``TimeLimit``: whose time it counts, when it stops, and whether a resume goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.callbacks.stopping import TimeLimit
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import at_step, fit, interrupt, same_tensors, saved_steps, set_time, weights_of


class Slow(hl.Callback):
    """A clock on which each step takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def on_setup(self, run: Any) -> None:
        set_time(run, lambda: self.now)

    def on_train_step_start(self, run: Any) -> None:
        self.now += 10.0


def fit_slowly(*callbacks: object, **options: Any) -> Any:
    """Twelve steps of ten seconds, in epochs of four."""
    return fit(*callbacks, Slow(), **{"max_duration": "12st", **options})


# -- when --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "step"),
    [
        (TimeLimit("30s"), 3),
        (TimeLimit("31s"), 4),
        (TimeLimit(timedelta(seconds=25)), 3),
        (TimeLimit("1m"), 6),
        (TimeLimit("1m", margin="20s"), 4),
        (TimeLimit("1m", margin=timedelta(seconds=25)), 4),
        (TimeLimit("30s", count="process"), 3),
        (TimeLimit("1h"), 12),
        (TimeLimit("30s", until=datetime.now(UTC) + timedelta(days=1)), 3),
    ],
)
def test_it_stops_at_the_end_of_the_first_step_after_the_time(limit: TimeLimit, step: int) -> None:
    result = fit_slowly(limit)
    assert result.clock.step == step
    assert result.stopped_by == (None if step == 12 else "TimeLimit")


def test_it_stops_also_while_every_step_is_skipped() -> None:
    """Skipped steps do not count, so that nothing else would end the run."""

    class Skip(hl.Callback):
        def on_gradients_ready(self, run: Any) -> None:
            assert run.clock.batch < 20, "it goes on for ever"
            run.skip_step()

    result = fit_slowly(TimeLimit("30s"), Skip())
    assert (result.clock.batch, result.clock.step, result.stopped_by) == (3, 0, "TimeLimit")


def test_the_reason_says_the_limit_and_what_was_left_for_the_end() -> None:
    assert fit_slowly(TimeLimit("30s")).stop_reason == "the time limit of 30s is reached"
    reason = "the time limit of 1m is reached (less 20s to end and save)"
    assert fit_slowly(TimeLimit("1m", margin="20s")).stop_reason == reason


def test_until_is_a_moment() -> None:
    until = datetime.now(UTC) + timedelta(seconds=35)
    result = fit_slowly(TimeLimit(until=until))  # the clock of the run is ten seconds a step, from now on
    assert result.clock.step == 4
    assert result.stop_reason == f"the time limit, {until.isoformat(sep=' ', timespec='seconds')}, is reached"


def test_the_evaluation_at_the_end_is_still_made() -> None:
    result = fit_slowly(TimeLimit("30s"), val=tiny_data(2))
    assert result.history.steps("val/loss") == [3]


def test_the_time_of_an_evaluation_counts() -> None:
    driven = drive(
        TimeLimit("1h"),
        ["fit_start", ("train_step_end", {"seconds": 3599}), ("eval_end", {"seconds": 9000})],
    )
    assert driven.stop_reason is None
    assert driven.then(["train_step_end"]).stop_reason == "the time limit of 1h is reached"


# -- resumes -----------------------------------------------------------------------------------------


def test_the_time_of_a_run_counts_over_its_resumes(tmp_path: Path) -> None:
    assert (
        fit_slowly(TimeLimit("50s"), hl.Checkpointer("100st"), at_step(3, interrupt), folder=tmp_path).clock.step == 3
    )
    result = fit_slowly(TimeLimit("50s"), hl.Checkpointer("100st"), folder=tmp_path, resume="auto")
    assert (result.clock.step, result.clock.seconds) == (5, 50.0)
    again = fit_slowly(TimeLimit("50s"), hl.Checkpointer("100st"), folder=tmp_path, resume="auto")
    assert (again.clock.step, again.stop_reason) == (5, "the time limit of 50s is reached")  # it is finished


@pytest.mark.parametrize("checkpointer", [True, False])
def test_the_time_of_a_process_begins_anew_and_the_run_goes_on_bitwise(tmp_path: Path, checkpointer: bool) -> None:
    """A job of three steps, three times, without a word about resuming but ``resume="auto"``."""
    steps, found = [], []
    for _ in range(4):
        model = TinyModel()
        saves = [hl.Checkpointer("100st")] if checkpointer else []
        result = fit_slowly(TimeLimit("30s", count="process"), *saves, model=model, folder=tmp_path / "run",
                            resume="auto", max_duration="11st")  # fmt: skip
        steps.append(result.clock.step)
        found.append(result)
    assert steps == [3, 6, 9, 11]
    assert [result.interrupted for result in found] == [True, True, True, False]
    assert found[0].stop_reason == "the time limit of 30s is reached"
    whole = TinyModel()
    fit_slowly(model=whole, max_duration="11st")
    assert same_tensors(weights_of(model), weights_of(whole))


def test_the_console_says_that_it_was_the_time_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit_slowly(TimeLimit("30s", count="process"), hl.Checkpointer("100st"), folder=tmp_path)
    saved = tmp_path / "checkpoints" / "step-00000003"
    assert f"the time limit of 30s is reached: saved {saved}" in caplog.text
    assert "Ctrl-C" not in caplog.text
    assert "keyboard" not in caplog.text


def test_until_leaves_the_run_so_that_it_can_go_on(tmp_path: Path) -> None:
    result = fit_slowly(TimeLimit(until=datetime.now(UTC) + timedelta(seconds=25)), folder=tmp_path)
    assert (result.clock.step, result.interrupted) == (3, True)
    assert saved_steps(tmp_path) == [3]
    assert fit_slowly(folder=tmp_path, resume="auto").clock.step == 12


def test_a_second_fit_has_its_whole_time_again() -> None:
    model, limit = TinyModel(), TimeLimit("30s", count="process")
    trainer = Trainer(callbacks=[limit, Slow()], max_duration="12st", folder=False)
    assert [fit(trainer=trainer, model=model).clock.step for _ in range(2)] == [3, 6]


def test_in_real_time_one_part_goes_on_from_the_other(tmp_path: Path) -> None:
    reached = []
    for _ in range(2):
        limit = TimeLimit("0.1s", count="process")
        result = fit(limit, max_duration="100000000st", folder=tmp_path, resume="auto")
        assert (result.interrupted, result.stopped_by) == (True, "TimeLimit")
        reached.append(result.clock.step)
    assert 0 < reached[0] < reached[1]


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"TimeLimit\(\): has no limit\. Write for example duration='2h', or until=…\."),
        (
            {"duration": "10ep"},
            r"TimeLimit\(duration='10ep'\): must be a time, such as '90s', '30m', '1h30m' or '2d'\.",
        ),
        ({"duration": "01:30:00"}, "is not a duration"),
        ({"duration": 90}, r"TimeLimit\(duration=90\): must be a timedelta, a duration such as '2ep' or None\."),
        ({"duration": timedelta(0)}, r"TimeLimit\(duration.*\): must be"),
        ({"duration": "1h", "count": "epoch"}, r"TimeLimit\(count='epoch'\): must be 'run' or 'process'\."),
        ({"duration": "1h", "margin": "1h"}, r"TimeLimit\(margin='1h'\): leaves no time of the 1h for training\."),
        (
            {"duration": "1h", "margin": "3st"},
            r"TimeLimit\(margin='3st'\): must be a time, such as '90s', '30m', '1h30m' or '2d'\.",
        ),
        ({"until": datetime(2100, 1, 1)}, r"TimeLimit\(until="),
        ({"until": "2100-01-01"}, r"TimeLimit\(until="),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TimeLimit(**arguments)


def test_a_moment_that_is_over_is_an_error_at_the_start() -> None:
    with pytest.raises(SetupError, match="there is no time left; give a later moment"):
        fit_slowly(TimeLimit(until=datetime.now(UTC) + timedelta(seconds=30), margin="1m"))
