"""``StopAtThreshold``: when a value counts as reached or missed, and for how long it must be."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.callbacks.stopping import StopAtThreshold
from hookline.errors import ArgumentError, DurationError, MetricError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import CE, at_step, fit, interrupt, train_loop

NAN, INF = math.nan, math.inf


class Feed(hl.Callback):
    """Logs the next value of a list at each evaluation."""

    state = ("given",)

    def __init__(self, values: list[float], metric: str = "val/score") -> None:
        self.values, self.metric, self.given = values, metric, 0
        self.writes = (metric,)

    def on_eval_end(self, run: Any) -> None:
        run.log({self.metric: self.values[min(self.given, len(self.values) - 1)]})
        self.given += 1


def fit_scores(stopper: StopAtThreshold, values: list[float], *callbacks: object, **options: Any) -> Any:
    """Epochs of two steps, each with an evaluation that gives the next value."""
    options = {"max_duration": f"{len(values)}ep", **options}
    return fit(stopper, Feed(values), *callbacks, train=tiny_data(2), val=tiny_data(1), **options)


CASES: dict[str, tuple[dict[str, Any], list[float], int | None]] = {
    # options, values, the evaluation after which it stops
    "reached": ({}, [0.1, 0.4, 0.6, 0.1], 3),
    "equal is reached": ({}, [0.1, 0.5, 0.1], 2),
    "never reached": ({}, [0.1, 0.4, 0.4], None),
    "smaller is better": ({"mode": "min"}, [0.9, 0.6, 0.4, 0.9], 3),
    "reached, patience 0 is the first": ({"patience": 0}, [0.1, 0.6, 0.1], 2),
    "reached, two in a row": ({"patience": 2}, [0.6, 0.1, 0.6, 0.7, 0.1], 4),
    "nan is not reached": ({}, [NAN, NAN, 0.1], None),
    "missed": ({"when": "missed"}, [0.6, 0.4, 0.9], 2),
    "equal is not missed": ({"when": "missed"}, [0.5, 0.5, 0.4], 3),
    "missed, three in a row": ({"when": "missed", "patience": 3}, [0.1, 0.1, 0.6, 0.1, 0.1, 0.1, 0.9], 6),
    "missed, smaller is better": ({"when": "missed", "mode": "min", "patience": 1}, [0.4, 0.5, 0.6], 3),
    "nan is missed": ({"when": "missed", "patience": 2}, [NAN, NAN, 0.9], 2),
    "reached for so many steps": ({"patience": "4st"}, [0.6, 0.1, 0.6, 0.7, 0.7, 0.7], 5),  # from step 6 to step 10
    "missed since the last that was not": ({"when": "missed", "patience": "2ep"}, [0.6, 0.1, 0.1, 0.9], 3),
    "missed from the beginning": ({"when": "missed", "patience": "3ep"}, [0.1, 0.1, 0.1, 0.9], 3),
    "missed for a share": ({"when": "missed", "patience": "0.5dur"}, [0.1, 0.1, 0.1, 0.9], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_when_it_stops(name: str) -> None:
    options, values, expected = CASES[name]
    result = fit_scores(StopAtThreshold("val/score", 0.5, **options), values)
    assert result.clock.epoch == (expected or len(values))
    assert result.stopped_by == ("StopAtThreshold" if expected else None)


@pytest.mark.parametrize(
    ("options", "values", "reason"),
    [
        ({}, [0.75], "val/score = 0.75 has reached 0.5"),
        ({"patience": 2}, [0.7, 0.8], "val/score = 0.8 has reached 0.5 for 2 evaluations"),
        ({"when": "missed"}, [0.25], "val/score = 0.25 has missed 0.5"),
        ({"when": "missed", "patience": "2ep"}, [0.1, 0.2], "val/score = 0.2 has missed 0.5 for 2ep"),
    ],
)
def test_the_reason_says_the_value_the_threshold_and_how_long(options: Any, values: list[float], reason: str) -> None:
    assert fit_scores(StopAtThreshold("val/score", 0.5, **options), values).stop_reason == reason


def test_an_hour_in_which_it_was_reached() -> None:
    stopper = StopAtThreshold("val/acc", 0.9, patience="1h")
    driven = drive(
        stopper,
        [
            ("eval_end", {"seconds": 0, "metrics": {"val/acc": 0.1}}),
            ("eval_end", {"seconds": 100, "metrics": {"val/acc": 0.95}}),
            ("eval_end", {"seconds": 3600, "metrics": {"val/acc": 0.95}}),
        ],
    )
    assert driven.stop_reason is None
    driven.then([("eval_end", {"seconds": 3700, "metrics": {"val/acc": 0.95}})])
    assert driven.stop_reason == "val/acc = 0.95 has reached 0.9 for 1h"


# -- when it decides ---------------------------------------------------------------------------------


class Steps(hl.Callback):
    """Logs the number of the step."""

    writes = ("train/score",)

    def on_train_step_end(self, run: Any) -> None:
        run.log({"train/score": float(run.clock.step)}, reduce="last")


fit_steps = partial(fit, Steps(), train=tiny_data(6), max_duration="3ep", log_every="2st")


def test_a_metric_of_training_is_looked_at_at_the_end_of_an_epoch() -> None:
    assert fit_steps(StopAtThreshold("train/score", 3)).clock.step == 6


def test_with_intervals_it_can_stop_in_the_middle_of_an_epoch() -> None:
    assert fit_steps(StopAtThreshold("train/score", 3, decide_at="interval")).clock.step == 4


def test_a_metric_of_the_evaluation_can_be_looked_at_once_an_epoch() -> None:
    stopper = StopAtThreshold("val/score", 0.5, decide_at="epoch")
    result = fit_scores(stopper, [0.9, 0.1, 0.9, 0.9], eval_every="1st", max_duration="4ep")
    assert result.clock.step == 4  # the last evaluation of the first epoch has missed it


@pytest.mark.parametrize(("decide_at", "step"), [("epoch", 12), ("interval", 13)])
def test_a_value_of_an_evaluation_counts_once_and_nothing_does_before_the_first(decide_at: Any, step: int) -> None:
    stopper = StopAtThreshold("val/score", 0.5, patience=3, decide_at=decide_at)
    result = fit_scores(stopper, [0.9, 0.9, 0.9], eval_every="2ep", log_every="1st", max_duration="20ep")
    assert (result.clock.step, result.stopped_by) == (step, "StopAtThreshold")


def test_an_own_loop_that_never_evaluates_is_told_that_nothing_was_decided(caplog: pytest.LogCaptureFixture) -> None:
    train_loop(StopAtThreshold("val/loss", 0.5), max_duration="1ep")
    assert "StopAtThreshold decided nothing: it needs evaluations for val/loss, and none was made" in caplog.text


def test_a_metric_that_only_an_evaluation_could_give_needs_one() -> None:
    with pytest.raises(SetupError, match=r"\('game/reward'\) decides after evaluations, and there is nothing to"):
        fit_steps(StopAtThreshold("game/reward", 3))


def test_a_metric_that_nobody_logs_is_found_before_the_first_step() -> None:
    with pytest.raises(MetricError, match=r"Did you mean 'val/score'"):
        fit_scores(StopAtThreshold("val/scores", 0.5, mode="max"), [1.0])


@pytest.mark.parametrize("leave", [1, 3, 4])
def test_a_run_that_is_left_and_resumed_stops_where_the_other_does(tmp_path: Path, leave: int) -> None:
    values = [0.6, 0.1, 0.6, 0.7, 0.8, 0.1, 0.1]

    def part(name: str, *callbacks: object, resume: Any = None) -> tuple[Any, dict[str, Any]]:
        stopper = StopAtThreshold("val/score", 0.5, patience=3)
        result = fit_scores(stopper, values, hl.Checkpointer("1ep"), *callbacks, folder=tmp_path / name, resume=resume)
        return result, stopper.state_dict()

    whole, expected = part("whole")
    part("parts", at_step(2 * leave, interrupt, "epoch_end"))
    parts, state = part("parts", resume="auto")
    assert whole.clock.epoch == 5
    assert (parts.clock.epoch, parts.stop_reason, state) == (5, whole.stop_reason, expected)


def test_another_run_with_the_same_object_begins_anew() -> None:
    stopper = StopAtThreshold("val/score", 0.5, patience=2)
    fit_scores(stopper, [0.6])
    assert stopper.in_a_row == 1
    assert fit_scores(stopper, [0.6, 0.1]).stopped_by is None


def test_what_was_only_loaded_from_a_finished_run_does_not_count_in_the_next_run(tmp_path: Path) -> None:
    fit_scores(StopAtThreshold("val/score", 0.5, patience=2), [0.1, 0.6], hl.Checkpointer("1ep"), folder=tmp_path)
    stopper = StopAtThreshold("val/score", 0.5, patience=2)
    fit_scores(stopper, [0.1, 0.6], hl.Checkpointer("1ep"), folder=tmp_path, resume="auto")
    assert stopper.in_a_row == 1
    assert fit_scores(stopper, [0.6, 0.1]).stopped_by is None


@pytest.mark.parametrize("other", [False, True])
def test_an_evaluation_between_two_fits_does_not_make_it_forget(other: bool) -> None:
    """With a new loss, or of another model, it is another loop with the same callbacks."""
    stopper, model = StopAtThreshold("val/score", 0.5, patience=3), TinyModel()
    trainer = Trainer(callbacks=[stopper, Feed([0.6])], max_duration="2ep", folder=False)
    fit_more = partial(fit, trainer=trainer, model=model, train=tiny_data(2), val=tiny_data(1))
    fit_more()
    trainer.evaluate(TinyModel() if other else model, tiny_data(1), loss=CE)
    assert stopper.in_a_row == 2
    assert fit_more(extend="5ep").clock.epoch == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"when": "crossed"}, ArgumentError, r"StopAtThreshold\(when='crossed'\): must be 'reached' or 'missed'\."),
        ({"threshold": NAN}, ArgumentError, r"StopAtThreshold\(threshold.*\): must be"),
        ({"threshold": "0.5"}, ArgumentError, r"StopAtThreshold\(threshold.*\): must be"),
        ({"threshold": True}, ArgumentError, r"StopAtThreshold\(threshold.*\): must be"),
        (
            {"patience": -1},
            ArgumentError,
            r"StopAtThreshold\(patience=-1\): must be >= 0, or a duration such as '2ep'\.",
        ),
        ({"patience": "long"}, DurationError, "not a duration"),
        (
            {"decide_at": "step"},
            ArgumentError,
            r"StopAtThreshold\(decide_at='step'\): must be 'eval', 'epoch', 'interval' or None\.",
        ),
        ({"monitor": "val/thing"}, ArgumentError, r"StopAtThreshold\(monitor="),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StopAtThreshold(**{"monitor": "val/acc", "threshold": 0.5, **arguments})
