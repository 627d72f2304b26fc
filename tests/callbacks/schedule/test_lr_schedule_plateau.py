"""A plateau of a metric: when it lowers the rate, and what is said where it never could."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookline.callbacks.schedule import LRSchedule
from hookline.errors import MetricError, RegistrationError, SetupError
from hookline.events import Callback
from hookline.loop import Loop, Result, Trainer
from hookline.testing import TinyModel, tiny_data

LR = 0.8


class Rates(Callback):
    """The rate with which each step is made, and the momentum."""

    def __init__(self) -> None:
        self.lr: list[float] = []
        self.momentum: list[float] = []

    def on_optimizer_step_start(self, run: Any) -> None:
        group = run.optimizer.param_groups[0]
        self.lr.append(float(group["lr"]))
        self.momentum.append(group.get("momentum", 0.0))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9)


def fit(*callbacks: Any, batches: int = 4, scheduler: Any = None, train: Any = None, **options: Any) -> Result:
    given = {"max_duration": "2ep", "folder": False, "device": "cpu"} | options
    trainer = Trainer(callbacks=callbacks, **given)
    data = tiny_data(batches=batches) if train is None else train
    return trainer.fit(
        TinyModel(), data, tiny_data(seed=1), loss=nn.CrossEntropyLoss(), optimizer=sgd, scheduler=scheduler
    )


def test_a_plateau_lowers_the_rate_when_the_metric_stands_still() -> None:
    schedule = LRSchedule("plateau", monitor="val/loss", factor=0.5, patience=0, threshold=10.0, threshold_mode="abs")
    rates = Rates()
    fit(schedule, rates, max_duration="3ep", batches=2)
    assert rates.lr == pytest.approx([LR] * 4 + [LR / 2] * 2)


def test_a_plateau_of_an_accuracy_waits_for_a_larger_one() -> None:
    assert LRSchedule("plateau", monitor="val/acc").options["mode"] == "max"
    assert LRSchedule(ReduceLROnPlateau, monitor="val/odd", mode="min").options["mode"] == "min"
    with pytest.raises(RegistrationError, match="Pass mode="):
        LRSchedule("plateau", monitor="val/odd")


def test_a_plateau_of_a_metric_that_nobody_logs_fails_before_training() -> None:
    with pytest.raises(MetricError, match="val/missing"):
        fit(LRSchedule("plateau", monitor="val/missing", mode="min"))


def test_a_plateau_without_anything_to_evaluate_on_fails_before_training() -> None:
    """It is moved after evaluations only, so it would never be."""
    trainer = Trainer(
        callbacks=[LRSchedule("plateau", monitor="train/loss_epoch")], max_duration="2ep", folder=False, device="cpu"
    )
    with pytest.raises(SetupError, match="nothing to evaluate on: pass a validation loader"):
        trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=sgd)


def test_a_plateau_of_a_training_loss_is_moved_after_evaluations() -> None:
    options = {"factor": 0.5, "patience": 0, "threshold": 10.0, "threshold_mode": "abs"}
    fit(LRSchedule("plateau", monitor="train/loss_epoch", **options), rates := Rates(), max_duration="3ep", batches=2)
    assert rates.lr == pytest.approx([LR] * 4 + [LR / 2] * 2)


@pytest.mark.parametrize("schedule", ["plateau", ReduceLROnPlateau], ids=["name", "class"])
@pytest.mark.parametrize("every", ["1st", "1ep"])
def test_how_often_a_plateau_moves_cannot_be_said(schedule: Any, every: str) -> None:
    with pytest.raises(RegistrationError, match=f"moves after evaluations; leave out every='{every}'"):
        LRSchedule(schedule, every=every)


def test_how_often_a_plateau_of_a_function_moves_cannot_be_said() -> None:
    fit(LRSchedule(lambda optimizer: ReduceLROnPlateau(optimizer)))
    with pytest.raises(SetupError, match="gave a plateau, which moves after evaluations; leave out every="):
        fit(LRSchedule(lambda optimizer: ReduceLROnPlateau(optimizer), every="1ep"))


@pytest.mark.parametrize("evaluates", [True, False])
def test_an_own_loop_that_never_evaluates_is_told_that_the_plateau_moved_nothing(
    evaluates: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = TinyModel()
    options: dict[str, Any] = {"max_duration": "2ep", "folder": False, "device": "cpu", "eval_every": "1ep"}
    with (
        caplog.at_level(logging.WARNING, "hookline"),
        Loop(model, sgd(model.parameters()), callbacks=[LRSchedule("plateau")], **options) as loop,
    ):
        for x, y in loop.batches(tiny_data()):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if evaluates and loop.eval_due:
                for a, b in loop.eval_batches(tiny_data()):
                    loop.run.log({"val/loss": nn.functional.cross_entropy(model(a), b)}, weight=len(b))
    told = (
        "LRSchedule('plateau') has moved nothing: it looks at val/loss after evaluations, and none was made in 8 steps"
    )
    assert (told in caplog.text) is not evaluates


def test_no_shape_but_a_plateau_needs_evaluations(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(callbacks=[LRSchedule("linear")], max_duration="1ep", folder=False, device="cpu")
    with caplog.at_level(logging.WARNING, "hookline"):
        trainer.train(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=sgd)
    assert caplog.text == ""
