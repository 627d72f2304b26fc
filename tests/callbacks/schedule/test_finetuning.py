"""A part of the model first, the rest later, at rates of its own."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hookline.callbacks import LambdaCallback, SpikeGuard
from hookline.callbacks.schedule import Finetuning, LRSchedule
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd

momentum_sgd = partial(sgd, momentum=0.9)


def trainable_only(parameters: Any) -> torch.optim.Optimizer:
    return momentum_sgd([parameter for parameter in parameters if parameter.requires_grad])


fit_three_epochs = partial(fit, val=tiny_data(seed=1), optimizer=momentum_sgd, max_duration="3ep")


def by_hand(lr: float, data: Any = None, joins: int = 4) -> dict[str, Any]:
    """The head alone for some steps, then the hidden layer too, at its own rate: a plain loop."""
    model = TinyModel()
    optimizer = momentum_sgd(model.out.parameters())
    model.hidden.requires_grad_(False)
    for step, (x, y) in enumerate(tiny_data() * 3 if data is None else data):
        if step == joins:
            model.hidden.requires_grad_(True)
            optimizer.add_param_group({"params": model.hidden.parameters(), "lr": lr})
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("optimizer", [momentum_sgd, trainable_only])
@pytest.mark.parametrize("moment", [1, "1ep", "4st"])
def test_what_is_unfrozen_is_trained_at_its_own_rate(optimizer: Any, moment: Any) -> None:
    tuning = Finetuning("hidden", {moment: {"layers": "hidden", "lr": 0.03}})
    found = fit_three_epochs(tuning, optimizer=optimizer)
    assert same_tensors(found.model.state_dict(), by_hand(0.03))


def test_without_a_rate_it_is_a_tenth_of_the_first_group() -> None:
    tuning = Finetuning("hidden", {1: "hidden"})
    fit_three_epochs(tuning)
    assert tuning.rates == {"SGD": [0.1, pytest.approx(0.01)]}
    tuning = Finetuning("hidden", {1: "hidden"}, initial_denom_lr=4)
    fit_three_epochs(tuning)
    assert tuning.rates == {"SGD": [0.1, 0.025]}


def test_layers_can_follow_one_another() -> None:
    tuning = Finetuning("hidden", {1: {"layers": "hidden.bias", "lr": 0.5}, 2: {"layers": "hidden.weight", "lr": 0.25}})
    frozen: list[tuple[str, ...]] = []
    fit_three_epochs(tuning, LambdaCallback(on_train_step_start=lambda run: frozen.append(tuning.frozen)))
    assert frozen == [("hidden.weight", "hidden.bias")] * 4 + [("hidden.weight",)] * 4 + [()] * 4
    assert tuning.rates == {"SGD": [0.1, 0.5, 0.25]}


def test_a_function_says_what_is_done() -> None:
    tuning: Finetuning = Finetuning("hidden", {1: lambda run: tuning.unfreeze_layers(run, "hidden", lr=0.03)})
    found = fit_three_epochs(tuning)
    assert same_tensors(found.model.state_dict(), by_hand(0.03))


class HeadFirst(Finetuning):
    """As in Lightning: two methods to override."""

    def freeze_before_training(self, run: Any) -> None:
        self.freeze_layers(run, "hidden")

    def finetune_function(self, run: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_layers(run, "hidden", lr=0.03, optimizer=optimizer)


def test_a_subclass_says_what_is_frozen_and_what_is_done_in_each_epoch() -> None:
    found = fit_three_epochs(HeadFirst())
    assert same_tensors(found.model.state_dict(), by_hand(0.03))


def test_a_rollback_takes_an_unfreezing_back_with_it() -> None:
    """Back to a moment before the group was there: as if the batches between had not been seen."""
    tuning, kept = Finetuning("hidden", {"3st": {"layers": "hidden", "lr": 0.03}}), []

    def keep_and_go_back(run: Any) -> None:
        if run.clock.step == 2 and not kept:
            kept.append(run.snapshot())
        elif run.clock.step == 5 and len(kept) == 1:
            kept.append(None)
            run.roll_back(kept[0])

    found = fit_three_epochs(LRSchedule("constant"), tuning, LambdaCallback(on_train_step_end=keep_and_go_back))
    data = tiny_data() * 3
    expected = by_hand(0.03, data[:2] + data[5:], joins=3)
    assert same_tensors(found.model.state_dict(), expected)
    assert tuning.rates == {"SGD": [0.1, 0.03]}


@pytest.mark.parametrize("back", [4, 5, 7], ids=["at the edge", "after a step", "after three"])
@pytest.mark.parametrize(
    "make", [lambda: Finetuning("hidden", {1: {"layers": "hidden", "lr": 0.03}}), HeadFirst], ids=["dict", "subclass"]
)
def test_a_rollback_over_the_edge_does_not_freeze_the_next_epoch(make: Any, back: int, go_back: Any) -> None:
    """As if the batches between had not been seen, but the data is in its epoch: what is due in it is done."""
    tuning = make()
    found = fit_three_epochs(tuning, go_back(3, back))
    data = tiny_data() * 3
    assert same_tensors(found.model.state_dict(), by_hand(0.03, data[:3] + data[back:], joins=3))
    assert tuning.frozen == ()


def test_a_spike_right_after_an_edge_does_not_freeze_the_next_epoch() -> None:
    class Spiking:
        """A batch of the second epoch is far too large."""

        def __init__(self) -> None:
            self.epochs, self.data = 0, tiny_data(batches=8)

        def __len__(self) -> int:
            return len(self.data)

        def __iter__(self) -> Any:
            self.epochs += 1
            for index, (x, y) in enumerate(self.data):
                yield (x * 1e4 if (self.epochs, index) == (2, 2) else x), y

    guard = SpikeGuard(action="rollback", snapshot_every="7st", warmup=2, window=50)
    trained: list[bool] = []
    note = LambdaCallback(on_train_step_start=lambda run: trained.append(run.model.hidden.weight.requires_grad))
    fit(guard, HeadFirst(), note, train=Spiking(), optimizer=momentum_sgd)
    assert len(guard.spikes) == 1
    assert trained == [False] * 8 + [True] * 8


class Counting(Finetuning):
    """Which epochs it was called for."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def finetune_function(self, run: Any, epoch: int, optimizer: Any) -> None:
        self.epochs.append(epoch)


def test_each_epoch_is_finetuned_once_and_once_more_for_each_time_it_was_taken_back(go_back: Any) -> None:
    plain, edge, over = Counting(), Counting(), Counting()
    fit_three_epochs(plain)
    fit_three_epochs(edge, go_back(3, 4))
    fit_three_epochs(over, go_back(3, 9))
    assert (plain.epochs, edge.epochs, over.epochs) == ([0, 1, 2], [0, 1, 2], [0, 1, 2, 1, 2])


def test_one_that_joins_in_a_later_fit_is_not_called_for_the_epochs_before() -> None:
    trainer = Trainer(max_duration="2ep", folder=False, device="cpu")
    tuning, model = Counting(), fit(trainer=trainer).model
    trainer.fit(model, tiny_data(), loss=CE, optimizer=sgd, extend="2ep", callbacks=[tuning])
    assert tuning.epochs == [2, 3]


def test_a_second_fit_goes_on_with_what_was_unfrozen() -> None:
    tuning = Finetuning("hidden", {1: {"layers": "hidden.bias", "lr": 0.02}, 3: "hidden.weight"})
    trainer = Trainer(callbacks=[tuning], max_duration="2ep", folder=False, device="cpu")
    model = fit(trainer=trainer).model
    assert tuning.frozen == ("hidden.weight",)
    assert model.hidden.weight.requires_grad  # the fit is over
    fit(trainer=trainer, model=model, extend="2ep")
    assert tuning.frozen == ()
    assert tuning.rates == {"SGD": [0.1, 0.02, pytest.approx(0.01)]}


def test_what_was_not_frozen_is_left_as_it_is_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    tuning = Finetuning("hidden", {1: "out"})
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_three_epochs(tuning)
    assert "out was not frozen by it" in caplog.text
    assert tuning.rates == {"SGD": [0.1]}


def test_names_of_later_epochs_are_checked_before_training() -> None:
    with pytest.raises(SetupError, match="The nearest names: hidden"):
        fit_three_epochs(Finetuning("hidden", {2: "hiden"}))
    with pytest.raises(SetupError, match="nothing is left to train"):
        fit_three_epochs(Finetuning("*", {1: "hidden"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Finetuning("hidden", {-1: "hidden"}),
            r"Finetuning\(unfreeze=\{-1: …\}\): must be >= 0\. The first epoch is 0\.",
        ),
        (lambda: Finetuning("hidden", {1: {"lr": 0.1}}), r"Finetuning\(unfreeze="),
        (lambda: Finetuning("hidden", {1: {"layers": "hidden", "rate": 1}}), r"Finetuning\(unfreeze="),
        (lambda: Finetuning("hidden", {1: ""}), "give names of layers or patterns"),
        (lambda: Finetuning("hidden", lr=0.0), r"Finetuning\((initial_denom_lr|lr).*\): must be"),
        (lambda: Finetuning("hidden", initial_denom_lr=0), r"Finetuning\((initial_denom_lr|lr).*\): must be"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
