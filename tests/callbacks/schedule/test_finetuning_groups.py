"""The groups of what is unfrozen: their rates, under schedulers and after a resume."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.schedule import Finetuning, LRSchedule
from hookline.errors import SetupError
from hookline.loop import Result
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, same_tensors, sgd

momentum_sgd = partial(sgd, momentum=0.9)


def fit_three_epochs(*callbacks: Any, **options: Any) -> Any:
    options = {"model": TinyModel(dropout=0.2), "optimizer": momentum_sgd, "max_duration": "3ep", **options}
    return fit(*callbacks, val=tiny_data(seed=1), **options)


SCHEDULERS: dict[str, Any] = {
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "step": lambda o: StepLR(o, 1, 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 12),
    "one_cycle": lambda o: OneCycleLR(o, 0.1, total_steps=12),
    "sequential": lambda o: SequentialLR(o, [LambdaLR(o, lambda s: 0.5), StepLR(o, 1, 0.5)], [3]),
    "plateau": lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=10.0, threshold_mode="abs"),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_move_the_new_group_in_proportion(name: str) -> None:
    tuning, rates = Finetuning("hidden", {1: {"layers": "hidden", "lr": 0.02}}), []
    note = LambdaCallback(
        on_optimizer_step_start=lambda run: rates.append([g["lr"] for g in run.optimizer.param_groups])
    )
    fit_three_epochs(tuning, note, scheduler=SCHEDULERS[name])
    assert [len(groups) for groups in rates] == [1] * 4 + [2] * 8
    head, own = rates[4]
    assert own == pytest.approx(0.02)
    assert [second / first for first, second in rates[4:]] == pytest.approx([own / head] * 8)


@pytest.mark.parametrize("name", ["lambda", "one_cycle", "sequential", "plateau", "LRSchedule", "none"])
@pytest.mark.parametrize("steps", [3, 6])
def test_a_resume_finds_layers_groups_and_rates_as_they_were(name: str, steps: int, tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> tuple[Finetuning, Result]:
        tuning = Finetuning("hidden", {1: {"layers": "hidden.weight", "lr": 0.02}, "5st": "hidden.bias"})
        mine = [LRSchedule("cosine", warmup="2st")] if name == "LRSchedule" else []
        result = fit_three_epochs(*mine, tuning, *callbacks, scheduler=SCHEDULERS.get(name), seed=1, **options)
        return tuning, result

    whole, straight = run()
    with pytest.raises(RuntimeError, match="planted"):
        run(crash_at(steps, "train_step_start"), Checkpointer(f"{steps}st"), folder=tmp_path / "run")
    tuning, again = run(Checkpointer(f"{steps}st"), folder=tmp_path / "run", resume="auto")
    assert tuning.rates == whole.rates
    assert tuning.state_dict() == whole.state_dict()
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def body_then_head(model: Any) -> torch.optim.Optimizer:
    groups = [{"params": model.hidden.parameters(), "lr": 0.001}, {"params": model.out.parameters(), "lr": 0.1}]
    return torch.optim.SGD(groups)


@pytest.mark.parametrize("steps", [None, 2, 6, 10])
def test_the_rate_is_a_part_of_that_of_the_head_in_whatever_order_the_groups_are(
    steps: int | None, tmp_path: Path
) -> None:
    """The frozen layers' own group is first, and is not the one to go by; its schedule is not, either."""

    def run(*callbacks: Any, **options: Any) -> dict[str, list[float]]:
        model, tuning = TinyModel(), Finetuning("hidden", {1: "hidden.bias", 2: "hidden.weight"})
        scheduler = partial(LambdaLR, lr_lambda=[lambda step: 1.0, lambda step: 1 / (1 + step)])
        options = {"optimizer": body_then_head(model), "scheduler": scheduler, **options}
        fit_three_epochs(tuning, *callbacks, model=model, **options)
        return tuning.rates

    if steps is None:
        rates = run()
    else:
        with pytest.raises(RuntimeError, match="planted"):
            run(crash_at(steps, "train_step_start"), Checkpointer(f"{steps}st"), folder=tmp_path / "run")
        rates = run(Checkpointer(f"{steps}st"), folder=tmp_path / "run", resume="auto")
    head = 0.1 / 13
    assert rates == {"SGD": pytest.approx([0.001, head, head / 10, head / 10])}


def test_several_optimizers_need_a_name() -> None:
    def two(parameters: Any) -> Any:
        first, *others = parameters
        return {"first": torch.optim.SGD([first], lr=0.1), "rest": torch.optim.SGD(others, lr=0.1)}

    with pytest.raises(SetupError, match="there is first, rest"):
        fit_three_epochs(Finetuning("hidden", {1: "hidden"}), optimizer=two)
    tuning = Finetuning("hidden.bias", {1: "hidden.bias"}, optimizer="rest", lr=0.5)
    fit_three_epochs(tuning, optimizer=two)
    assert tuning.rates == {"first": [0.1], "rest": [0.1, 0.5]}
