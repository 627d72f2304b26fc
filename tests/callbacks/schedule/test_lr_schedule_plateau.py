"""A plateau of a metric: when it lowers the rate, and what is said where it never could."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookline.callbacks.schedule import LRSchedule
from hookline.errors import ArgumentError, MetricError, SetupError
from hookline.events import Callback
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, sgd

LR = 0.8


class Rates(Callback):
    """The learning rate of each step."""

    def __init__(self) -> None:
        self.lr: list[float] = []

    def on_optimizer_step_start(self, run: Any) -> None:
        self.lr.append(float(run.optimizer.param_groups[0]["lr"]))


momentum_sgd = partial(sgd, lr=LR, momentum=0.9)
fit_val = partial(fit, val=tiny_data(seed=1), optimizer=momentum_sgd)


def test_a_plateau_lowers_the_rate_when_the_metric_stands_still() -> None:
    schedule = LRSchedule("plateau", monitor="val/loss", factor=0.5, patience=0, threshold=10.0, threshold_mode="abs")
    rates = Rates()
    fit_val(schedule, rates, max_duration="3ep", train=tiny_data(2))
    assert rates.lr == pytest.approx([LR] * 4 + [LR / 2] * 2)


def test_a_plateau_of_an_accuracy_waits_for_a_larger_one() -> None:
    assert LRSchedule("plateau", monitor="val/acc").options["mode"] == "max"
    assert LRSchedule(ReduceLROnPlateau, monitor="val/odd", mode="min").options["mode"] == "min"
    with pytest.raises(ArgumentError, match=r"LRSchedule\(monitor="):
        LRSchedule("plateau", monitor="val/odd")


def test_a_plateau_of_a_metric_that_nobody_logs_fails_before_training() -> None:
    with pytest.raises(MetricError, match="val/missing"):
        fit_val(LRSchedule("plateau", monitor="val/missing", mode="min"))


def test_a_plateau_without_anything_to_evaluate_on_fails_before_training() -> None:
    """It is moved after evaluations only, so it would never be."""
    with pytest.raises(SetupError, match=r"nothing to evaluate on\. Pass a validation loader"):
        fit(LRSchedule("plateau", monitor="train/loss_epoch"))


def test_a_plateau_of_a_training_loss_is_moved_after_evaluations() -> None:
    options = {"factor": 0.5, "patience": 0, "threshold": 10.0, "threshold_mode": "abs"}
    fit_val(
        LRSchedule("plateau", monitor="train/loss_epoch", **options),
        rates := Rates(),
        max_duration="3ep",
        train=tiny_data(2),
    )
    assert rates.lr == pytest.approx([LR] * 4 + [LR / 2] * 2)


@pytest.mark.parametrize("schedule", ["plateau", ReduceLROnPlateau], ids=["name", "class"])
@pytest.mark.parametrize("every", ["1st", "1ep"])
def test_how_often_a_plateau_moves_cannot_be_said(schedule: Any, every: str) -> None:
    with pytest.raises(ArgumentError, match=f"steps after evaluations. Leave out every='{every}'"):
        LRSchedule(schedule, every=every)


def test_how_often_a_plateau_of_a_function_moves_cannot_be_said() -> None:
    fit_val(LRSchedule(lambda optimizer: ReduceLROnPlateau(optimizer)))
    with pytest.raises(SetupError, match="gave a plateau, which steps after evaluations; leave out every="):
        fit_val(LRSchedule(lambda optimizer: ReduceLROnPlateau(optimizer), every="1ep"))


@pytest.mark.parametrize("evaluates", [True, False])
def test_an_own_loop_that_never_evaluates_is_told_that_the_plateau_moved_nothing(
    evaluates: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = TinyModel()
    options: dict[str, Any] = {"max_duration": "2ep", "folder": False, "device": "cpu", "eval_every": "1ep"}
    with (
        caplog.at_level(logging.WARNING, "hookline"),
        Loop(model, momentum_sgd(model.parameters()), callbacks=[LRSchedule("plateau")], **options) as loop,
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
        trainer.train(TinyModel(), tiny_data(), loss=CE, optimizer=sgd)
    assert caplog.text == ""
