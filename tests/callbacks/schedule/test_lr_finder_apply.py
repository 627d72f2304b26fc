"""The suggestion set: as if the optimizer had been made with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import LambdaCallback
from hookline.callbacks.schedule import LRFinder, LRSchedule
from hookline.errors import SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, same_tensors, sgd

momentum_sgd = partial(sgd, lr=0.05, momentum=0.9)


def loader() -> DataLoader[Any]:
    x, y = (torch.cat(part) for part in zip(*tiny_data(batches=8), strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def fit_shuffled(*callbacks: Any, **options: Any) -> Any:
    """Two epochs of eight shuffled batches."""
    options = {"model": TinyModel(dropout=0.3), "train": loader(), "optimizer": momentum_sgd, "seed": 3, **options}
    return fit(*callbacks, val=tiny_data(seed=1), **options)


def test_apply_is_as_if_the_optimizer_had_been_made_with_the_rate() -> None:
    finder = LRFinder(1e-4, 1.0, num_training_steps=30, apply=True, plot=False)
    found = fit_shuffled(finder, model=TinyModel())
    assert finder.suggestion is not None
    by_hand = fit_shuffled(
        model=TinyModel(), optimizer=lambda p: torch.optim.SGD(p, lr=finder.suggestion, momentum=0.9)
    )
    assert same_tensors(found.model.state_dict(), by_hand.model.state_dict())


def test_apply_keeps_the_proportion_of_groups() -> None:
    def two(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": others, "lr": 0.02}])

    seen: list[list[float]] = []
    note = LambdaCallback(on_train_start=lambda run: seen.append([g["lr"] for g in run.optimizers["SGD"].param_groups]))
    finder = LRFinder(1e-4, 1.0, num_training_steps=30, apply=True, plot=False)
    fit_shuffled(finder, note, optimizer=two)
    assert finder.suggestion is not None
    assert seen == [[finder.suggestion, pytest.approx(finder.suggestion / 5)]]


@pytest.mark.parametrize("still", [0, 1])
@pytest.mark.parametrize("scheduler", [None, lambda o: LambdaLR(o, lambda step: 1.0)], ids=["none", "lambda"])
def test_a_group_at_a_rate_of_zero_stays_there_and_the_others_get_the_suggestion(still: int, scheduler: Any) -> None:
    def two(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        groups = [{"params": [first], "lr": 0.1}, {"params": others, "lr": 0.1}]
        groups[still]["lr"] = 0.0
        return torch.optim.SGD(groups)

    seen: list[list[float]] = []
    note = LambdaCallback(on_train_end=lambda run: seen.append([g["lr"] for g in run.optimizers["SGD"].param_groups]))
    finder = LRFinder(1e-4, 1.0, num_training_steps=30, apply=True, plot=False)
    fit_shuffled(finder, note, optimizer=two, scheduler=scheduler)
    expected = [pytest.approx(finder.suggestion)] * 2
    expected[still] = 0.0  # type: ignore[call-overload]
    assert seen == [expected]


def test_an_optimizer_at_a_rate_of_zero_is_an_error_if_the_suggestion_is_to_be_set() -> None:
    def zero(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    with pytest.raises(SetupError, match="make it with a rate above 0"):
        fit_shuffled(LRFinder(num_training_steps=20, apply=True, plot=False), optimizer=zero)
    finder = LRFinder(num_training_steps=20, plot=False)
    fit_shuffled(finder, optimizer=zero)
    assert finder.suggestion is not None


@pytest.mark.parametrize("how", ["LRSchedule", "warmup", "one_cycle"])
def test_apply_is_the_peak_that_a_schedule_climbs_to(how: str) -> None:
    found: list[float] = []
    note = LambdaCallback(on_optimizer_step_start=lambda run: found.append(run.optimizer.param_groups[0]["lr"]))
    finder = LRFinder(1e-4, 1.0, num_training_steps=30, apply=True, plot=False)
    given = {
        "warmup": lambda o: LambdaLR(o, lambda step: min(1.0, (step + 1) / 4)),
        "one_cycle": lambda o: OneCycleLR(o, 0.05, total_steps=16),
    }
    mine = [LRSchedule("constant", warmup="4st")] if how == "LRSchedule" else []
    fit_shuffled(*mine, finder, note, scheduler=given.get(how))
    assert max(found) == pytest.approx(finder.suggestion, rel=1e-2 if how == "one_cycle" else 1e-9)
    assert found[0] < max(found)
