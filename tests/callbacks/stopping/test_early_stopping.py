"""``EarlyStopping``: when it stops, why it says so, and what it puts back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import EarlyStopping
from hookline.errors import ArgumentError, DurationError, MetricError, RegistrationError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import (
    CE,
    at_step,
    fit,
    interrupt,
    json_lines,
    literal,
    same_tensors,
    set_time,
    sgd,
    train_loop,
    weights_of,
)  # fmt: skip

NAN, INF = math.nan, math.inf


class Feed(hl.Callback):
    """Logs the values of a list, one at each evaluation, and counts the evaluations."""

    def __init__(self, values: list[float], metric: str = "val/score") -> None:
        self.values, self.metric = values, metric
        self.writes = (metric,)
        self.given = 0

    def on_eval_end(self, run: Any) -> None:
        if run.stage == "val":
            run.log({self.metric: self.values[min(self.given, len(self.values) - 1)]})
            self.given += 1


class Weights(hl.Callback):
    """The weights at each evaluation."""

    def __init__(self) -> None:
        self.kept: list[list[torch.Tensor]] = []

    def on_eval_end(self, run: Any) -> None:
        self.kept.append(weights_of(run.model))


fit_two_batches = partial(fit, train=tiny_data(2))
"""Epochs of two steps."""


def fit_scores(stopper: EarlyStopping, values: list[float], *callbacks: hl.Callback, **options: Any) -> Any:
    """Epochs of two steps, each with an evaluation that gives the next value."""
    options = {"max_duration": f"{len(values)}ep", "val": tiny_data(1), **options}
    return fit_two_batches(stopper, Feed(values, stopper.monitor), *callbacks, **options)


# -- patience ----------------------------------------------------------------------------------------

COUNTS: dict[str, tuple[dict[str, Any], list[float], int | None]] = {
    # options, values, the evaluation after which it stops
    "improving": ({"patience": 1}, [1, 2, 3, 4], None),
    "patience 0 stops at the first that is not better": ({"patience": 0}, [1, 2, 2, 3], 3),
    "patience 1": ({"patience": 1}, [1, 2, 2, 3], 3),
    "patience 2": ({"patience": 2}, [1, 2, 2, 2, 3], 4),
    "patience 2, better in between": ({"patience": 2}, [1, 0, 2, 1, 3, 0, 0], 7),
    "equal is not better": ({"patience": 3}, [1, 1, 1, 1, 1], 4),
    "the default is 3": ({}, [5, 4, 3, 2, 1], 4),
    "smaller is better": ({"mode": "min", "patience": 2}, [3, 2, 2.5, 2, 1], 4),
    "min_delta counts from the best": ({"patience": 2, "min_delta": 1.0}, [0, 0.9, 1.0, 3], 3),
    "more than min_delta": ({"patience": 2, "min_delta": 1.0}, [0, 1.1, 2.2, 3.3], None),
    "min_delta, smaller is better": ({"mode": "min", "patience": 1, "min_delta": 0.5}, [3, 2, 1.6, 1], 3),
    "min_delta as a share of the best": (
        {"patience": 1, "min_delta": 0.1, "threshold_mode": "rel"},
        [100, 111, 122],
        3,
    ),
    "a share of a negative best": ({"patience": 1, "min_delta": 0.1, "threshold_mode": "rel"}, [-100, -89, -81], 3),
    "a share, smaller is better": (
        {"mode": "min", "patience": 1, "min_delta": 0.1, "threshold_mode": "rel"},
        [100, 89, 81],
        3,
    ),
    "before start nothing counts": ({"patience": 1, "start": "3ep"}, [9, 1, 2, 1, 0], 4),
    "start in steps": ({"patience": 1, "start": "6st"}, [9, 1, 2, 1, 0], 4),
    "start as a share": ({"patience": 1, "start": "0.6dur"}, [9, 1, 2, 1, 0], 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_patience_is_a_number_of_decisions_without_improvement(name: str) -> None:
    options, values, expected = COUNTS[name]
    result = fit_scores(EarlyStopping("val/score", **options), values)
    assert result.clock.epoch == (expected or len(values))
    assert result.stopped_by == ("EarlyStopping" if expected else None)


def test_the_reason_names_the_best_value_its_step_and_the_patience() -> None:
    result = fit_scores(EarlyStopping("val/score", patience=2), [1, 7.5, 2, 3])
    assert result.stop_reason == "val/score has not improved on 7.5 (step 4) for 2 evaluations"


def test_the_reason_names_min_delta() -> None:
    """A value that is better, but not by enough, would else make the reason look wrong."""
    result = fit_scores(EarlyStopping("val/score", patience=2, min_delta=0.5), [1, 1.2, 1.4])
    said = "val/score has not improved on 1 (step 2) by more than 0.5 (min_delta) for 2 evaluations"
    assert result.stop_reason == said


def test_the_reason_counts_one_evaluation_as_one() -> None:
    result = fit_scores(EarlyStopping("val/score", patience=1), [1, 1])
    assert result.stop_reason == "val/score has not improved on 1 (step 2) for 1 evaluation"


DURATIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    # patience, options, the step at which it stops; the first evaluation is the best one
    "epochs": ("2ep", {}, 6),
    "steps": ("3st", {}, 6),  # best at step 2, so at 5, which is noticed at 6
    "steps that are met": ("4st", {}, 6),
    "steps, evaluated at each": ("3st", {"eval_every": "1st"}, 4),
    "samples": ("40sp", {}, 8),  # 8 a step: best at 16 samples, 40 more are 56, noticed at 64
    "a share": ("0.5dur", {"max_duration": "8ep"}, 10),
}


@pytest.mark.parametrize("name", DURATIONS)
def test_patience_may_be_a_duration_since_the_best(name: str) -> None:
    patience, options, step = DURATIONS[name]
    result = fit_scores(EarlyStopping("val/score", patience=patience), [5, 4, 3, 2, 1, 0, -1, -2], **options)
    assert result.clock.step == step
    assert result.stop_reason.endswith(f"for {patience}")


def test_patience_in_seconds_counts_from_the_best() -> None:
    now = 0.0

    class Slow(hl.Callback):
        def on_setup(self, run: Any) -> None:
            set_time(run, lambda: now)

        def on_train_step_start(self, run: Any) -> None:
            nonlocal now
            now += 10.0

    result = fit_scores(EarlyStopping("val/score", patience="45s"), [1, 2, 0, 0, 0, 0, 0], Slow())
    assert result.clock.epoch == 5  # best at 40 s; 60, 80 and 100 s are not better, and 85 is over at 100
    assert result.stop_reason == "val/score has not improved on 2 (step 4) for 45s"


def test_a_better_value_starts_the_duration_again() -> None:
    result = fit_scores(EarlyStopping("val/score", patience="2ep"), [1, 0, 2, 1, 3, 2, 2, 2])
    assert result.clock.epoch == 7


# -- other reasons -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "text"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
def test_a_value_that_is_not_finite_stops_at_once(value: float, text: str) -> None:
    result = fit_scores(EarlyStopping("val/score"), [1, 2, value, 3])
    assert (result.clock.epoch, result.stop_reason) == (3, f"val/score is {text}")


@pytest.mark.parametrize("mode", ["min", "max"])
def test_without_check_finite_nan_has_not_reached_the_stopping_threshold(mode: Any) -> None:
    stopper = EarlyStopping("val/score", mode=mode, check_finite=False, stopping_threshold=0.5, patience=9)
    assert fit_scores(stopper, [NAN, NAN, 0.5, 1]).clock.epoch == 3


def test_check_finite_can_be_switched_off_and_nan_is_then_not_better() -> None:
    result = fit_scores(EarlyStopping("val/score", check_finite=False, patience=2), [1, NAN, 2, NAN, NAN, 3])
    assert result.clock.epoch == 5
    assert result.stop_reason == "val/score has not improved on 2 (step 6) for 2 evaluations"


def test_without_check_finite_a_first_nan_does_not_stay_the_best() -> None:
    """Nothing is better than NaN in a comparison: the run would stop however well it goes."""
    stopper = EarlyStopping("val/score", check_finite=False, patience=2)
    result = fit_scores(stopper, [NAN, 1, 2, 3, 4])
    assert result.clock.epoch == 5
    assert stopper.best == 4


@pytest.mark.parametrize(
    ("mode", "values", "epoch", "reason"),
    [
        ("max", [0.5, 0.9, 0.95], 2, "val/score = 0.9 has reached 0.9"),
        ("max", [0.5, 0.95, 0.99], 2, "val/score = 0.95 has reached 0.9"),
        ("min", [1.5, 0.9, 0.1], 2, "val/score = 0.9 has reached 0.9"),
        ("min", [1.5, 0.25, 0.1], 2, "val/score = 0.25 has reached 0.9"),
    ],
)
def test_stopping_threshold(mode: Any, values: list[float], epoch: int, reason: str) -> None:
    result = fit_scores(EarlyStopping("val/score", mode=mode, stopping_threshold=0.9), values)
    assert (result.clock.epoch, result.stop_reason) == (epoch, reason)


@pytest.mark.parametrize(
    ("mode", "values", "epoch", "reason"),
    [
        ("min", [2, 4, 4.5, 1], 3, "val/score = 4.5 is worse than 4.0"),
        ("max", [0.5, 4.0, 3.5, 9], 1, "val/score = 0.5 is worse than 4.0"),
        ("max", [5, 4.0, 3.5, 9], 3, "val/score = 3.5 is worse than 4.0"),
    ],
)
def test_divergence_threshold(mode: Any, values: list[float], epoch: int, reason: str) -> None:
    result = fit_scores(EarlyStopping("val/score", mode=mode, divergence_threshold=4.0), values)
    assert (result.clock.epoch, result.stop_reason) == (epoch, reason)


def test_the_first_reason_that_holds_counts() -> None:
    stopper = EarlyStopping("val/score", mode="min", patience=0, stopping_threshold=1.0, divergence_threshold=3.0)
    assert fit_scores(stopper, [2, -INF]).stop_reason == "val/score is -inf"
    stopper = EarlyStopping("val/score", mode="min", patience=0, stopping_threshold=5.0, divergence_threshold=3.0)
    assert fit_scores(stopper, [4]).stop_reason == "val/score = 4 has reached 5.0"
    stopper = EarlyStopping("val/score", mode="min", patience=0, divergence_threshold=3.0)
    assert fit_scores(stopper, [2, 4]).stop_reason == "val/score = 4 is worse than 3.0"


def test_before_start_thresholds_do_not_count_but_a_value_that_is_not_finite_does() -> None:
    options: dict[str, Any] = {"start": "3ep", "stopping_threshold": 0.9, "divergence_threshold": -5.0}
    result = fit_scores(EarlyStopping("val/score", **options), [1, -9, 0.5, 1, 1])
    assert (result.clock.epoch, result.stop_reason) == (4, "val/score = 1 has reached 0.9")
    result = fit_scores(EarlyStopping("val/score", **options), [1, NAN, 0.5])
    assert (result.clock.epoch, result.stop_reason) == (2, "val/score is nan")


# -- mode --------------------------------------------------------------------------------------------


def test_the_mode_is_known_from_the_name() -> None:
    small = literal("val/loss train/loss_epoch val/word_error_rate val/ppl val/hard/loss val/RMSE")
    large = literal("val/acc val/top1_acc val/macro-f1 val/mAP val/iou test/reward")
    assert [name for name in small if EarlyStopping(name).mode != "min"] == []
    assert [name for name in large if EarlyStopping(name).mode != "max"] == []


@pytest.mark.parametrize("monitor", ["val/thing", "val/loss_accuracy", "val/lossy", "val/"])
def test_a_name_that_does_not_say_it_is_an_error(monitor: str) -> None:
    with pytest.raises(ArgumentError, match=r"EarlyStopping\(monitor="):
        EarlyStopping(monitor)
    assert EarlyStopping(monitor, mode="max").mode == "max"


def test_the_mode_given_counts_more_than_the_name() -> None:
    assert EarlyStopping("val/loss", mode="max").mode == "max"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "smaller"}, ArgumentError, r"EarlyStopping\(mode='smaller'\): must be 'min', 'max' or None\."),
        ({"patience": -1}, ArgumentError, r"EarlyStopping\(patience.*\): must be"),
        ({"patience": True}, ArgumentError, r"EarlyStopping\(patience.*\): must be"),
        ({"patience": "3 evaluations"}, DurationError, "evaluations"),
        ({"patience": "10ba"}, DurationError, "st"),
        ({"min_delta": -0.1}, ArgumentError, "min_delta"),
        ({"min_delta": NAN}, ArgumentError, "min_delta"),
        (
            {"threshold_mode": "share"},
            ArgumentError,
            r"EarlyStopping\(threshold_mode='share'\): must be 'abs' or 'rel'\.",
        ),
        (
            {"decide_at": "step"},
            ArgumentError,
            r"EarlyStopping\(decide_at='step'\): must be 'eval', 'epoch', 'interval' or None\.",
        ),
        ({"start": "later"}, DurationError, "not a duration"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EarlyStopping("val/loss", **options)


# -- when it decides ---------------------------------------------------------------------------------


def test_a_metric_of_training_is_looked_at_when_the_epoch_ends() -> None:
    class Noise(hl.Callback):
        writes = ("train/noise",)

        def on_train_step_end(self, run: Any) -> None:
            run.log({"train/noise": float(run.clock.epoch)})

    result = fit_two_batches(Noise(), EarlyStopping("train/noise", mode="min", patience=2), max_duration="9ep")
    assert result.clock.epoch == 3
    assert result.stop_reason == "train/noise has not improved on 0 (step 2) for 2 epochs"


def test_a_metric_of_training_is_not_looked_at_after_evaluations() -> None:
    stopper = EarlyStopping("train/loss_epoch", patience=1)
    result = fit(stopper, val=tiny_data(1), eval_every="1st")
    assert (result.clock.epoch, stopper.best_step) == (2, 8)


def test_at_intervals_it_can_stop_in_the_middle_of_a_long_epoch() -> None:
    class Steps(hl.Callback):
        writes = ("train/noise",)

        def on_train_step_end(self, run: Any) -> None:
            run.log({"train/noise": float(max(run.clock.step, 6))})

    stopper = EarlyStopping("train/noise", mode="min", patience=2, decide_at="interval")
    result = fit(Steps(), stopper, train=tiny_data(30), max_duration="1ep", log_every="3st")
    assert result.clock.step == 9
    assert result.stop_reason == "train/noise has not improved on 6 (step 3) for 2 intervals"


def test_a_metric_of_the_evaluation_can_be_looked_at_once_an_epoch() -> None:
    result = fit_scores(EarlyStopping("val/score", patience=1, decide_at="epoch"), [9, 1, 9, 2, 9, 2], eval_every="1st")
    assert (result.clock.epoch, result.stop_reason) == (3, "val/score has not improved on 2 (step 4) for 1 epoch")


def test_a_value_of_an_evaluation_counts_once_however_many_epochs_follow() -> None:
    """The epochs before the first evaluation have nothing to decide by; those after one have its old value."""
    stopper = EarlyStopping("val/score", patience=2, decide_at="epoch")
    result = fit_scores(stopper, [3, 2, 1, 0], eval_every="3ep", max_duration="20ep")
    assert (result.clock.epoch, stopper.best_step) == (9, 6)


def test_at_intervals_a_value_of_an_evaluation_counts_once() -> None:
    stopper = EarlyStopping("val/score", patience=2, decide_at="interval")
    result = fit_scores(stopper, [3, 2, 1, 0], eval_every="4st", log_every="1st", max_duration="20ep")
    assert (result.clock.step, stopper.best_step) == (13, 5)  # the first intervals after steps 4, 8 and 12


def test_an_own_loop_that_logs_the_metric_without_an_evaluation_is_still_stopped() -> None:
    model, stopper = TinyModel(), EarlyStopping("val/score", patience=2, decide_at="epoch")
    with Loop(model, sgd(model.parameters()), callbacks=[stopper], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(CE(model(x), y))
            loop.step()
            loop.run.log({"val/score": 1.0})
    assert loop.result().stopped_by == "EarlyStopping"


@pytest.mark.parametrize("decide_at", [None, "epoch", "interval"])
def test_an_own_loop_that_never_evaluates_is_told_that_nothing_was_decided(decide_at: Any, caplog: Any) -> None:
    train_loop(EarlyStopping("val/loss", decide_at=decide_at))
    assert "EarlyStopping decided nothing: it needs evaluations for val/loss, and none was made" in caplog.text


def test_a_run_that_is_left_before_its_first_evaluation_is_told_nothing(caplog: Any) -> None:
    loop, _ = train_loop(EarlyStopping("val/loss"), at_step(1, interrupt))
    assert loop.result().interrupted
    fit_scores(EarlyStopping("val/score"), [1, 2])
    assert "decided nothing" not in caplog.text


def test_a_metric_that_only_an_evaluation_could_give_needs_one() -> None:
    """It would never decide, and never say so."""
    said = r"EarlyStopping\('game/reward'\) decides after evaluations, and there is nothing"
    with pytest.raises(SetupError, match=said):
        fit_two_batches(EarlyStopping("game/reward"))


def test_an_epoch_that_is_cut_is_no_decision_about_a_metric_of_training() -> None:
    """A stop in the middle repeats the value of the epoch before: it must not use up the patience."""
    model, stopper = TinyModel(), EarlyStopping("train/loss_epoch", patience=1)
    pause = at_step(3, lambda run: run.stop("pause"))
    trainer = Trainer(callbacks=[stopper, pause], max_duration="3ep", folder=False)
    result = fit_two_batches(trainer=trainer, model=model)
    assert (result.stop_reason, result.clock.epoch, stopper.waited) == ("pause", 1, 0)
    assert fit_two_batches(trainer=trainer, model=model).clock.epoch == 3


def test_it_decides_after_each_evaluation_also_inside_an_epoch() -> None:
    result = fit_scores(EarlyStopping("val/score", patience=1), [1, 2, 2, 2], eval_every="1st")
    assert (result.clock.epoch, result.clock.step) == (1, 3)


def test_the_final_test_and_a_separate_evaluation_decide_nothing() -> None:
    stopper = EarlyStopping("val/loss", patience=0, min_delta=100.0)
    trainer = Trainer(callbacks=[stopper], max_duration="1ep", folder=False)
    result = fit_two_batches(trainer=trainer, val=tiny_data(1), test=tiny_data(1))
    trainer.evaluate(result.model, tiny_data(1))
    assert (stopper.waited, result.stopped_by) == (0, None)


def test_in_the_own_loop() -> None:
    model = TinyModel()
    stopper = EarlyStopping("val/score", patience=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, callbacks=[stopper], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for _ in loop.eval_batches(tiny_data(1)):
                    loop.run.log({"val/score": 1.0})
    assert (loop.run.clock.epoch, loop.result().stopped_by) == (2, "EarlyStopping")


def test_an_array_is_no_number_to_monitor() -> None:
    class Matrix(hl.Callback):
        writes = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            run.log({"val/score": torch.ones(2, 2)})

    with pytest.raises(MetricError, match="array"):
        fit(EarlyStopping("val/score"), Matrix(), val=tiny_data(1))


def test_two_of_them_with_different_monitors_live_together() -> None:
    first, second = EarlyStopping("val/score", patience=1), EarlyStopping("val/loss", patience=9)
    result = fit_scores(first, [1, 1, 1], second)
    assert (result.clock.epoch, result.stop_reason.split()[0]) == (2, "val/score")


# -- restore_best ------------------------------------------------------------------------------------


def test_restore_best_puts_the_weights_of_the_best_decision_back_bitwise() -> None:
    model, weights = TinyModel(), Weights()
    result = fit_scores(
        EarlyStopping("val/score", patience=2, restore_best=True), [1, 3, 2, 2, 9], weights, model=model
    )
    assert result.clock.epoch == 4
    assert same_tensors(weights_of(model), weights.kept[1])
    assert not torch.equal(model.out.weight, weights.kept[3][2])


def test_weights_that_are_put_back_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit_scores(EarlyStopping("val/score", patience=2, restore_best=True), [1, 3, 2, 2, 9], folder=tmp_path)
    said = "the weights of step 4 are restored: val/score 3 was the best"
    assert said in caplog.messages
    events = json_lines(tmp_path / "events.jsonl")
    assert [(row["step"], row["text"]) for row in events if row["name"] == "restore"] == [(8, said)]
    caplog.clear()
    fit_scores(EarlyStopping("val/score", restore_best=True), [1, 2])  # they are those of the last step
    assert caplog.messages == []


@pytest.mark.parametrize(("mode", "values"), [("max", [1, 9, 2]), ("min", [3, 0, 2])])
def test_restore_best_gives_back_the_weights_that_reached_the_stopping_threshold(
    mode: Any, values: list[float]
) -> None:
    """They are the reason why the run ends; the best before them is worse."""
    model, weights = TinyModel(), Weights()
    limit = 5.0 if mode == "max" else 1.0
    stopper = EarlyStopping("val/score", mode=mode, stopping_threshold=limit, restore_best=True)
    result = fit_scores(stopper, values, weights, model=model)
    assert (result.clock.epoch, stopper.best, stopper.best_step) == (2, values[1], 4)
    assert same_tensors(weights_of(model), weights.kept[1])


def test_restore_best_puts_buffers_back_too() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tiny, self.norm = TinyModel(), nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.tiny(x))

    model = Normed()
    seen: list[torch.Tensor] = []

    class Statistics(hl.Callback):
        def on_eval_end(self, run: Any) -> None:
            seen.append(run.model.norm.running_mean.clone())

    fit_scores(EarlyStopping("val/score", restore_best=True), [2, 1, 0], Statistics(), model=model)
    assert torch.equal(model.norm.running_mean, seen[0])
    assert not torch.equal(seen[0], seen[2])


def test_restore_best_acts_at_every_end_of_training_and_before_the_final_test() -> None:
    found: list[float] = []

    class AtTest(hl.Callback):
        def on_eval_start(self, run: Any) -> None:
            if run.stage == "test":
                found.append(run.model.out.weight.sum().item())

    model, weights = TinyModel(), Weights()
    stopper = EarlyStopping("val/score", patience=9, restore_best=True)
    result = fit_scores(stopper, [3, 2, 1], AtTest(), weights, model=model, test=tiny_data(1))
    assert result.stopped_by is None
    assert found == [weights.kept[0][2].sum().item()]


def test_without_restore_best_the_last_weights_stay() -> None:
    model, weights = TinyModel(), Weights()
    fit_scores(EarlyStopping("val/score", patience=2), [3, 2, 1, 0], weights, model=model)
    assert torch.equal(model.out.weight, weights.kept[-1][2])


def test_the_best_weights_are_a_copy_that_training_does_not_change() -> None:
    stopper, weights = EarlyStopping("val/score", restore_best=True), Weights()
    fit_scores(stopper, [3, 2, 1], weights)
    assert stopper.best_weights is not None
    assert torch.equal(stopper.best_weights["out.weight"], weights.kept[0][2])


def test_restore_best_beside_an_average_of_the_weights() -> None:
    """Both write the weights; with an order given, what was evaluated is what is restored, all of it."""

    class Average(hl.Callback):
        writes = ("weights",)
        before = (EarlyStopping,)

        def around_eval(self, run: Any) -> Iterator[None]:
            zeros = {name: torch.zeros_like(parameter) for name, parameter in run.model.named_parameters()}
            with run.swap_weights(zeros):
                yield

    model = TinyModel()
    fit_scores(EarlyStopping("val/score", restore_best=True), [3, 2, 1], Average(), model=model)
    assert not any(parameter.any() for parameter in model.parameters())


def leave_after(epoch: int) -> hl.Callback:
    """A callback that ends this process's part of the run after an epoch, as Ctrl-C does."""
    return at_step(2 * epoch, interrupt, "epoch_end")


def test_restore_best_leaves_a_run_that_is_only_interrupted_alone(tmp_path: Path, caplog: Any) -> None:
    """Else it would go on from other weights than those at which it was left."""
    made = []

    def part(name: str, *callbacks: hl.Callback, resume: Any = None) -> tuple[Any, EarlyStopping, nn.Module]:
        model, stopper = TinyModel(), EarlyStopping("val/score", patience=9, restore_best=True)
        result = fit_scores(stopper, [3, 2, 1, 0], hl.Checkpointer("1ep"), *callbacks, model=model,
                     folder=tmp_path / name, resume=resume)  # fmt: skip
        made.append(weights_of(model))
        return result, stopper, model

    weights = Weights()
    part("whole", weights)
    left, stopper, _ = part("parts", leave_after(2))
    assert left.interrupted
    assert same_tensors(made[1], weights.kept[1])  # the last ones
    assert stopper.best_weights is not None
    assert "keeps its last weights; the best, of step 2, are in best_weights" in caplog.text
    part("parts", resume="auto")
    assert same_tensors(made[0], made[2])
    assert same_tensors(made[0], weights.kept[0])


def test_restore_best_leaves_a_loop_that_was_left_by_break_alone() -> None:
    model, stopper = TinyModel(), EarlyStopping("val/score", patience=9, restore_best=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, callbacks=[stopper], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for _ in loop.eval_batches(tiny_data(1)):
                    loop.run.log({"val/score": -float(loop.run.clock.step)})
            last = model.out.weight.detach().clone()
            if loop.run.clock.step == 6:
                break
    assert torch.equal(model.out.weight, last)
    assert stopper.best_step == 2


def test_the_checkpoint_at_the_end_has_the_best_weights_and_so_has_a_run_that_is_resumed_when_it_is_finished(
    tmp_path: Path,
) -> None:
    weights = Weights()
    fit_scores(EarlyStopping("val/score", patience=2, restore_best=True), [3, 2, 1, 0], weights, hl.Checkpointer("1ep"),
        folder=tmp_path)  # fmt: skip
    model = TinyModel(seed=5)
    again = fit_scores(EarlyStopping("val/score", patience=2, restore_best=True), [3, 2, 1, 0], hl.Checkpointer("1ep"),
                model=model, folder=tmp_path, resume="auto")  # fmt: skip
    assert again.stop_reason == "val/score has not improved on 3 (step 2) for 2 evaluations"
    assert same_tensors(weights_of(model), weights.kept[0])


@pytest.mark.parametrize("turned", [False, True])
def test_next_to_a_users_own_average_the_order_follows_from_its_role(turned: bool) -> None:
    """The weights that it puts into the model at the end must not replace the best."""

    class Zeros(hl.Callback):
        writes = ("weights",)
        role = "average"

        def on_train_end(self, run: Any) -> None:
            with torch.no_grad():
                for parameter in run.model.parameters():
                    parameter.zero_()

    model, weights = TinyModel(), Weights()
    callbacks = [EarlyStopping("val/score", restore_best=True), Zeros()]
    callbacks = callbacks[::-1] if turned else callbacks
    fit_two_batches(*callbacks, Feed([3, 2]), weights, model=model, val=tiny_data(1))
    assert same_tensors(weights_of(model), weights.kept[0])


# -- state -------------------------------------------------------------------------------------------


def test_the_state_goes_into_a_new_one_and_the_decision_is_the_same() -> None:
    first = EarlyStopping("val/score", patience=3, restore_best=True)
    fit_scores(first, [1, 5, 4, 3])
    second = EarlyStopping("val/score", patience=3, restore_best=True)
    second.load_state_dict(first.state_dict())
    assert (second.best, second.best_step, second.waited) == (5, 4, 2)
    assert second.best_weights is not None
    assert second.best_weights.keys() == TinyModel().state_dict().keys()
    result = fit_scores(second, [2, 9])
    assert result.clock.epoch == 1
    assert result.stop_reason == "val/score has not improved on 5 (step 4) for 3 evaluations"


def test_the_state_names_all_that_changes_in_a_run() -> None:
    stopper = EarlyStopping("val/score", patience="4st", restore_best=True)
    before = dict(vars(stopper))
    fit_scores(stopper, [1, 2, 0])
    changed = {name for name, value in vars(stopper).items() if name not in before or value is not before[name]}
    assert changed - {"_trained_in"} <= set(stopper.state_dict())  # which run has used it is of this object only
    assert (stopper.best, stopper.best_step, stopper.best_at["st"], stopper.waited) == (2, 4, 4, 1)


def test_a_second_run_with_another_model_forgets_the_first() -> None:
    """Else it would stop against the best of the first model, and put its weights into the second."""
    stopper = EarlyStopping("val/score", patience=2, restore_best=True)
    fit_scores(stopper, [5, 4])
    assert stopper.best == 5
    fit_scores(stopper, [1, 2])
    assert stopper.best == 2


def test_what_was_only_loaded_from_a_finished_run_does_not_count_in_the_next_run(tmp_path: Path) -> None:
    """Else the new one would stop against the best of the old one."""
    fit_scores(EarlyStopping("val/score", patience=2), [9, 8], hl.Checkpointer("1ep"), folder=tmp_path)
    stopper = EarlyStopping("val/score", patience=2)
    fit_scores(stopper, [9, 8], hl.Checkpointer("1ep"), folder=tmp_path, resume="auto")
    assert stopper.best == 9
    result = fit_scores(stopper, [1, 2, 3])
    assert (result.clock.epoch, stopper.best) == (3, 3)


@pytest.mark.parametrize("other", [False, True])
def test_an_evaluation_between_two_fits_does_not_make_it_forget(other: bool) -> None:
    """With a new loss, or of another model, it is another loop with the same callbacks."""
    stopper, model = EarlyStopping("val/score", patience=2), TinyModel()
    trainer = Trainer(callbacks=[stopper, Feed([5, 4, 3, 2])], max_duration="2ep", folder=False)
    fit_two_batches(trainer=trainer, model=model, val=tiny_data(1))
    trainer.evaluate(TinyModel() if other else model, tiny_data(1), loss=CE)
    assert (stopper.best, stopper.waited) == (5, 1)
    result = fit_two_batches(trainer=trainer, model=model, val=tiny_data(1), extend="5ep")
    assert (result.clock.epoch, result.stopped_by) == (3, "EarlyStopping")


def test_a_state_that_lacks_something_is_refused() -> None:
    with pytest.raises(RegistrationError, match="waited"):
        EarlyStopping("val/loss").load_state_dict({"best": 1.0, "best_step": 2, "best_at": {}, "best_weights": None})


def test_its_identity_is_made_of_its_arguments() -> None:
    assert EarlyStopping("val/loss", patience=2).state_key == "EarlyStopping(monitor='val/loss', patience=2)"


def test_a_second_fit_goes_on_with_what_it_knows() -> None:
    stopper = EarlyStopping("val/score", patience=2)
    trainer = Trainer(callbacks=[stopper, Feed([5, 4, 3, 2])], max_duration="2ep", folder=False)
    first = fit_two_batches(trainer=trainer, val=tiny_data(1))
    assert (first.clock.epoch, first.stopped_by, stopper.waited) == (2, None, 1)
    second = fit_two_batches(trainer=trainer, model=first.model, val=tiny_data(1), extend="5ep")
    assert (second.clock.epoch, second.stopped_by) == (3, "EarlyStopping")


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"patience": 3},
        {"patience": "4st", "restore_best": True},
        {"patience": "1ep"},
        {"patience": 1, "decide_at": "epoch", "eval_every": "2ep"},
    ],
)
def test_a_run_that_is_left_and_resumed_decides_as_one_that_is_not(
    tmp_path: Path, options: dict[str, Any], stop: int
) -> None:
    class Saved(Feed):
        state = ("given",)

    options = dict(options)
    eval_every = options.pop("eval_every", "1ep")

    def part(name: str, *callbacks: hl.Callback, resume: Any = None) -> tuple[Any, dict[str, Any], nn.Module]:
        stopper, feed = EarlyStopping("val/score", **options), Saved([1, 3, 2, 4, 3, 3, 3, 3, 3])
        result = fit_two_batches(stopper, feed, hl.Checkpointer("100st"), *callbacks, val=tiny_data(1),
                                 max_duration="9ep", folder=tmp_path / name, resume=resume,
                                 eval_every=eval_every)  # fmt: skip
        return result, stopper.state_dict(), result.model

    whole, expected, model = part("whole")
    part("parts", leave_after(stop))
    parts, state, other = part("parts", resume="auto")
    assert (parts.clock.step, parts.stop_reason) == (whole.clock.step, whole.stop_reason)
    assert same_tensors(weights_of(model), weights_of(other))
    kept, wanted = state.pop("best_weights"), expected.pop("best_weights")
    assert state == expected
    assert (kept is None) == (wanted is None)
    assert kept is None or same_tensors(kept, wanted)
