"""A metric that a callback monitors and nobody logs is an error before the first step, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import ArgumentError, HooklineError, MetricError
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd

Make = Callable[[str], hl.Callback]

MONITORS: dict[str, Make] = {
    "EarlyStopping": lambda name: hl.EarlyStopping(name, mode="min"),
    "EarlyStopping at epochs": lambda name: hl.EarlyStopping(name, mode="min", decide_at="epoch"),
    "StopAtThreshold": lambda name: hl.StopAtThreshold(name, 0.0, mode="min"),
    "StopOnNaN": lambda name: hl.StopOnNaN(("gradients", name)),
    "SaveBest": lambda name: hl.SaveBest(name, mode="min"),
    "Checkpointer": lambda name: hl.Checkpointer(monitor=name, mode="min"),
    "ExportModel": lambda name: hl.ExportModel("torchscript", monitor=name, mode="min"),
    "LRSchedule": lambda name: hl.LRSchedule("plateau", monitor=name, mode="min"),
    "MLPerfLog": lambda name: hl.MLPerfLog("bert", organization="us", monitor=name),
    "Notify": lambda name: hl.Notify(webhook="http://127.0.0.1:9/", when=f"{name} > 2"),
    "DerivedMetric": lambda name: hl.DerivedMetric("val/twice", lambda found: 2 * found[name], reads=(name,)),
}
train_and_evaluate = partial(fit, val=tiny_data(2), optimizer=torch.optim.SGD)

NAMES = ("loss", "accuracy", "val/acc", "train/acc", "validation/loss", "gradients")


class Steps(hl.Callback):
    """How many steps were made. It declares that it logs nothing."""

    writes = ()

    def __init__(self) -> None:
        self.made = 0

    def on_train_step_start(self, run: Any) -> None:
        self.made += 1


class Logging(hl.Task):
    """A task that logs a metric of its own in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel()

    def configure_optimizers(self, run: Any) -> Any:
        return sgd(self.parameters())

    def train_batch(self, run: Any, batch: Any) -> Any:
        run.log({"accuracy": 0.5, "gan/score": 1.0})
        return CE(self.model(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        run.log({"accuracy": 0.5})
        return CE(self.model(batch[0]), batch[1])


@pytest.mark.parametrize("kind", MONITORS)
def test_a_metric_that_nobody_logs_is_found_before_the_first_step(kind: str, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        if kind == "StopOnNaN" and "/" not in name:
            name = "val"  # "loss" and "gradients" are what it watches in each step
        steps = Steps()
        with pytest.raises(HooklineError, match=name):
            train_and_evaluate(MONITORS[kind](name), steps, hl.TimeLimit("1h"), folder=tmp_path / str(number))
        assert steps.made == 0, name


@pytest.mark.parametrize("make", MONITORS.values(), ids=MONITORS.keys())
def test_what_a_task_does_not_log_either_is_found_when_its_first_interval_ends(make: Make, tmp_path: Path) -> None:
    """``train_batch`` may log any name, which is known only when the first metrics of training are written."""
    for name in ("val/acc", "validation/loss", "train/acc"):
        steps, says = Steps(), rf"monitors '{name}', but no such metric was logged. Available: .*val/loss"
        with pytest.raises(MetricError, match=says):
            train_and_evaluate(make(name), steps, folder=tmp_path / name, model=Logging(), log_every="2st")
        assert steps.made == (0 if name == "val/acc" else 2), name


@pytest.mark.parametrize("name", ["val/accuracy", "train/accuracy", "train/accuracy_epoch", "gan/score", "train/loss"])
def test_what_a_task_logs_may_be_monitored(name: str, tmp_path: Path) -> None:
    makes = [make for kind, make in MONITORS.items() if kind not in ("ExportModel", "SaveBest", "MLPerfLog")]
    train_and_evaluate(*(make(name) for make in makes), folder=tmp_path / "run", model=Logging())


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("val_loss", "'val/loss'"),
        ("valid_acc_top5", "'val/acc_top5'"),
        ("eval_loss", "'val/loss'"),
        ("validation_loss", "'val/loss'"),
        ("train_loss", "'train/loss'"),
        ("test_loss", "'test/loss'"),
        ("loss", "'val/loss' or 'train/loss'"),
        ("val", "'val/val' or 'train/val'"),
    ],
)
def test_a_name_of_another_system_gets_its_name_here(name: str, write: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        hl.EarlyStopping(name, mode="min")
    assert str(caught.value).endswith(f"the name of a metric starts with its stage. Write {write}.")


def test_the_error_names_the_metrics_that_are_there_and_the_nearest_one(tmp_path: Path) -> None:
    message = (
        "EarlyStopping monitors 'val/acc', but no such metric was logged. Available: train/loss, val/accuracy, "
        "val/loss. Did you mean 'val/accuracy'?"
    )
    with pytest.raises(MetricError) as caught:
        train_and_evaluate(hl.EarlyStopping("val/acc"), folder=tmp_path / "run", model=Logging())
    assert message in str(caught.value)


class EverySecond(hl.Callback):
    """A metric that is too expensive to compute at each evaluation: it falls each time that it is computed."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.writes = (metric,)
        self.evaluations = 0

    def on_eval_end(self, run: Any) -> None:
        self.evaluations += 1
        if self.evaluations % 2 == 0:
            run.log({self.metric: 1.0 / self.evaluations})


SLOW = {name: make for name, make in MONITORS.items() if name != "Notify"}
of_any_prefix = pytest.mark.parametrize("metric", ["val/slow", "bench/slow"])


@of_any_prefix
@pytest.mark.parametrize("make", SLOW.values(), ids=SLOW.keys())
def test_a_declared_metric_that_is_computed_at_some_evaluations_is_waited_for(
    make: Make, metric: str, tmp_path: Path
) -> None:
    result = train_and_evaluate(make(metric), EverySecond(metric), folder=tmp_path / "run", eval_every="1st")
    assert result.history.steps(metric) == [2, 4, 6, 8]
    assert result.clock.step == 8


@of_any_prefix
@pytest.mark.parametrize("decide_at", ["eval", "epoch", "interval"])
def test_an_evaluation_without_the_metric_is_no_decision(decide_at: Any, metric: str, tmp_path: Path) -> None:
    """The value of an earlier evaluation was counted once more, as one that is not better."""
    stopper = hl.EarlyStopping(metric, mode="min", patience=1, decide_at=decide_at)
    result = train_and_evaluate(
        stopper, EverySecond(metric), folder=tmp_path / "run", eval_every="1st", log_every="1st"
    )
    assert (result.clock.step, result.stopped_by) == (8, None)


@of_any_prefix
def test_a_plateau_waits_for_a_metric_that_is_computed_at_some_evaluations(metric: str, tmp_path: Path) -> None:
    schedule = hl.LRSchedule("plateau", monitor=metric, mode="min", patience=0, factor=0.5)
    result = train_and_evaluate(
        schedule, EverySecond(metric), hl.LRMonitor(), folder=tmp_path / "run", eval_every="1st"
    )
    assert len(set(result.history["lr/SGD"])) == 1


def test_a_declared_metric_that_never_comes_is_said_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(hl.Callback):
        writes = ("val/score",)

    train_and_evaluate(hl.EarlyStopping("val/score"), Forgetful(), folder=tmp_path / "run")
    assert "EarlyStopping decided nothing: 'val/score' was never logged" in caplog.text


class AtEpochEnd(hl.Callback):
    def on_epoch_end(self, run: Any) -> None:
        run.log({"score/all": 0.5})


def test_a_metric_that_an_epoch_logs_is_there_when_it_is_needed(tmp_path: Path) -> None:
    """The callback declares nothing, and the first interval ends before the first epoch does."""
    stopper = hl.EarlyStopping("score/all", mode="max", patience=1, decide_at="epoch")
    result = train_and_evaluate(stopper, AtEpochEnd(), folder=tmp_path / "run", log_every="1st")
    assert result.stopped_by == "EarlyStopping"


@pytest.mark.parametrize("kind", ["EarlyStopping", "StopAtThreshold", "MLPerfLog"])
def test_a_state_without_the_step_of_the_last_decision_is_loaded(kind: str) -> None:
    """Checkpoints of earlier versions lack it."""
    callback = MONITORS[kind]("val/slow")
    state = {key: value for key, value in callback.state_dict().items() if key not in ("decided_at", "measured_at")}
    callback.load_state_dict(state)
    assert None in callback.state_dict().values()
