"""A schedule in a run that goes on: after a resume, in a longer fit, in a later one."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.schedule import LRSchedule
from hookline.errors import OrderError
from hookline.events import Callback
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, train_loop

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


momentum_sgd = partial(sgd, lr=LR, momentum=0.9)
fit_val = partial(fit, val=tiny_data(seed=1), optimizer=momentum_sgd)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LRSchedule("cosine", warmup="2st"),
        lambda: LRSchedule("one_cycle"),
        lambda: LRSchedule("wsd", decay="0.5dur"),
        lambda: LRSchedule("cosine", warmup="20sp", total="90sp"),
        lambda: LRSchedule(CosineAnnealingLR),
        lambda: LRSchedule(StepLR, every="1ep", step_size=1, gamma=0.5),
        lambda: LRSchedule("plateau", factor=0.5, patience=0, threshold=10.0, threshold_mode="abs"),
    ],
    ids=["cosine", "one_cycle", "wsd", "samples", "torch", "by_epoch", "plateau"],
)
@pytest.mark.parametrize("steps", [1, 5, 8])
def test_a_resume_goes_on_with_the_same_rates(make: Any, steps: int, tmp_path: Path) -> None:
    whole, first, second = Rates(), Rates(), Rates()
    straight = fit_val(make(), whole, max_duration="3ep")
    options = {"max_duration": "3ep", "folder": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_val(make(), first, crash_at(steps, "train_step_start"), Checkpointer(f"{steps}st"), **options)
    again = fit_val(make(), second, Checkpointer(f"{steps}st"), resume="auto", **options)
    assert first.lr + second.lr == whole.lr
    assert first.momentum + second.momentum == whole.momentum
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def test_an_own_loop_that_goes_on_keeps_its_plan(tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> None:
        model, schedule = TinyModel(), LRSchedule("one_cycle")
        optimizer = momentum_sgd(model.parameters())
        train_loop(schedule, *callbacks, model=model, optimizer=optimizer, folder=tmp_path / "run", **options)

    whole, first, second = Rates(), Rates(), Rates()
    fit_val(LRSchedule("one_cycle"), whole)
    with pytest.raises(RuntimeError, match="planted"):
        run(first, crash_at(3, "train_step_start"), Checkpointer("3st"))
    run(second, Checkpointer("3st"), resume="auto")
    assert first.lr + second.lr == whole.lr


def test_a_longer_run_keeps_the_plan_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(
        callbacks=[LRSchedule("linear"), rates := Rates()], max_duration="2ep", folder=False, device="cpu"
    )
    model = fit_val(trainer=trainer).model
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_val(trainer=trainer, model=model, extend="1ep")
    assert "continues with the saved plan, with total 8; for this run it would be total 12" in caplog.text
    assert rates.lr[8:] == [0.0] * 4


def rates_of_two_fits(first: LRSchedule, second: LRSchedule, **options: Any) -> list[float]:
    """Each schedule is passed to one of two fits of a trainer."""
    rates = Rates()
    trainer = Trainer(callbacks=[rates], max_duration="2ep", folder=False, device="cpu")
    given = {"loss": CE, "optimizer": momentum_sgd, **options}
    model = trainer.fit(TinyModel(), tiny_data(), tiny_data(), callbacks=[first], **given).model
    trainer.fit(model, tiny_data(), tiny_data(), callbacks=[second], extend="1ep", **given)
    return [rate / LR for rate in rates.lr]


def test_an_evaluation_between_two_fits_changes_nothing_in_the_rates() -> None:
    schedule, rates, entries = LRSchedule("linear", total="12st"), Rates(), []
    note = LambdaCallback(on_train_end=lambda run: entries.append(len(run.schedulers)))
    trainer = Trainer(callbacks=[schedule, rates, note], max_duration="2ep", folder=False, device="cpu")
    model = fit(trainer=trainer, optimizer=momentum_sgd).model
    trainer.evaluate(model, tiny_data(seed=1), loss=nn.CrossEntropyLoss())
    fit(trainer=trainer, model=model, optimizer=momentum_sgd, extend="1ep")
    assert entries == [1, 1]
    assert rates.lr == pytest.approx([LR * (1 - move / 12) for move in range(12)])


@pytest.mark.parametrize("first", ["linear", "one_cycle", StepLR], ids=["linear", "one_cycle", "step"])
def test_a_new_one_in_a_later_fit_takes_the_place_of_the_earlier_one(
    first: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins at the optimizer's own rate, and is over when the run is."""
    options = {"step_size": 2} if first is StepLR else {}
    with caplog.at_level(logging.INFO, "hookline"):
        found = rates_of_two_fits(LRSchedule(first, **options), LRSchedule("linear", warmup=0.5))
    assert found[8:] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert "LRSchedule('linear') takes the place of the schedule of an earlier fit, for SGD" in caplog.text
    assert "both move" not in caplog.text


@pytest.mark.parametrize("second", ["one_cycle", StepLR, CosineAnnealingLR], ids=["one_cycle", "step", "cosine"])
def test_one_of_torch_in_a_later_fit_begins_at_the_rate_of_the_optimizer(second: Any) -> None:
    options = {"step_size": 2, "gamma": 0.5} if second is StepLR else {}
    found = rates_of_two_fits(LRSchedule("linear"), LRSchedule(second, **options))
    fresh = Rates()
    fit_val(LRSchedule(second, **options), fresh, max_duration="4st")
    assert found[8:] == pytest.approx([rate / LR for rate in fresh.lr])


def test_the_length_that_is_said_holds_in_a_later_fit_too() -> None:
    found = rates_of_two_fits(LRSchedule("linear"), LRSchedule("linear", total="8st"))
    assert found[8:] == pytest.approx([1.0, 7 / 8, 6 / 8, 5 / 8])


def test_one_beside_that_of_the_trainer_is_an_error() -> None:
    trainer = Trainer(callbacks=[LRSchedule("linear")], max_duration="1ep", folder=False, device="cpu")
    model = fit(trainer=trainer).model
    with pytest.raises(OrderError, match="both write 'optimizer'"):
        trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd, extend="1ep", callbacks=[LRSchedule("constant")])


def test_a_resume_of_a_later_fit_goes_on_with_what_was_left_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(rates: Rates, *more: Any) -> None:
        saver = Checkpointer("1st")
        options: dict[str, Any] = {"loss": CE, "optimizer": momentum_sgd}
        trainer = Trainer(max_duration="1ep", folder=tmp_path / "run", resume="auto", device="cpu", callbacks=[saver])
        model, schedule = TinyModel(), LRSchedule("linear")
        if more:
            trainer.fit(model, tiny_data(), **options)
            trainer.fit(model, tiny_data(), extend="2ep", callbacks=[schedule, rates, *more], **options)
        else:
            options |= {"callbacks": [schedule, rates]}
            trainer = Trainer(
                max_duration="3ep", folder=tmp_path / "run", resume="auto", device="cpu", callbacks=[saver]
            )
            trainer.fit(model, tiny_data(), **options)

    first, second = Rates(), Rates()
    with pytest.raises(RuntimeError, match="planted"):
        run(first, crash_at(7, "train_step_start"))
    run(second)
    assert "continues with the saved plan" not in caplog.text  # it is as long as it was
    assert first.lr + second.lr == pytest.approx([LR * (1 - move / 8) for move in range(8)])
