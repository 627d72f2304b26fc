"""The learning rates as rows: which names, which values, at which steps."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import Checkpointer
from hookline.callbacks.watch.lr_monitor import LRMonitor
from hookline.events.spec import STEP_EVENTS
from hookline.events.validate import overridden
from hookline.loop import Loop, Result
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, crash_at, fit, json_lines, sgd


def fit_with(optimizer: Any, *callbacks: Any, **options: Any) -> Result:
    result = fit(*callbacks, optimizer=optimizer, **{"log_every": "1st", **options})
    assert result.failures == ()
    return result


def groups(*names: str | None, **options: Any) -> Any:
    """An optimizer with one group for each name: of one parameter of ``TinyModel``, the last of all that are left."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        left, found = list(parameters), []
        for number, name in enumerate(names):
            own = left if number == len(names) - 1 else [left.pop(0)]
            named = {} if name is None else {"name": name}
            found.append({"params": own, "lr": 0.1 * (number + 1), **named})
        return torch.optim.SGD(found, **options)

    return make


class UsedRates(hl.Callback):
    """What each optimizer stepped with, by step: read from the optimizer at the moment of its update."""

    def __init__(self) -> None:
        self.lr: dict[str, dict[int, list[float]]] = {}

    def on_optimizer_step_start(self, run: Any) -> None:
        name = next(name for name, optimizer in run.optimizers.items() if optimizer is run.optimizer)
        rates = [float(group["lr"]) for group in run.optimizer.param_groups]
        self.lr.setdefault(name, {})[run.clock.step + 1] = rates

    def check(self, history: Any, name: str, groups: tuple[str, ...] = ("",)) -> None:
        for index, group in enumerate(groups):
            steps = history.steps(f"lr/{name}{group}")
            assert steps
            assert history[f"lr/{name}{group}"] == [self.lr[name][step][index] for step in steps]


def falling(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


@pytest.mark.parametrize("every", ["1st", "3st", "1ep"])
@pytest.mark.parametrize("log_every", ["1st", "3st", None])
@pytest.mark.parametrize("lr", [0.8, torch.tensor(0.5)], ids=["number", "tensor"])
def test_a_row_is_the_rate_that_its_step_was_made_with(every: str, log_every: str | None, lr: Any) -> None:
    used = UsedRates()

    def adam(parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=lr if isinstance(lr, float) else lr.clone(), foreach=False)

    def scheduler(optimizer: Any) -> Any:
        return hl.Scheduler(falling(optimizer), every=every)

    result = fit_with(adam, LRMonitor(), used, scheduler=scheduler, log_every=log_every)
    used.check(result.history, "Adam")
    assert len(set(result.history["lr/Adam"])) > 1


def test_momentum_and_weight_decay_are_those_of_the_step() -> None:
    made: list[tuple[float, float]] = []

    def cycle(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)

    @hl.on("optimizer_step_start")
    def keep(run: Any) -> None:
        group = run.optimizer.param_groups[0]
        group["weight_decay"] = 0.1 * run.clock.step
        made.append((group["momentum"], group["weight_decay"]))

    monitor = LRMonitor(momentum=True, weight_decay=True)
    result = fit_with(partial(sgd, momentum=0.9), monitor, keep, scheduler=cycle)
    assert list(zip(result.history["momentum/SGD"], result.history["weight_decay/SGD"], strict=True)) == made


def test_each_optimizer_of_a_custom_loop_has_the_rates_of_its_own_last_update() -> None:
    model, used = TinyModel(), UsedRates()
    first, *others = model.parameters()
    often = torch.optim.SGD([{"params": [first], "name": "a"}, {"params": others[:1], "name": "b"}], lr=0.4)
    seldom = torch.optim.AdamW(others[1:], lr=0.2)
    loop = Loop(
        model,
        {"often": often, "seldom": seldom},
        scheduler=[falling(often), falling(seldom)],
        callbacks=[LRMonitor(), used],
        max_duration="2ep",
        log_every="1st",
        folder=False,
        device="cpu",
    )
    with loop:
        for number, (x, y) in enumerate(loop.batches(tiny_data())):
            loop.backward(nn.functional.cross_entropy(model(x), y), often)
            loop.step(often)
            if number % 3 == 0:
                loop.backward(nn.functional.cross_entropy(model(x), y), seldom)
            loop.step()
    history = loop.run.history
    used.check(history, "often", ("/a", "/b"))
    assert history["lr/seldom"] == [0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]


def test_several_groups_are_numbered() -> None:
    result = fit_with(groups(None, None), LRMonitor())
    assert result.history["lr/SGD/0"] == [0.1] * 8
    assert result.history["lr/SGD/1"] == [0.2] * 8
    assert "lr/SGD" not in result.history


def test_groups_have_the_names_that_the_user_gave_them() -> None:
    result = fit_with(groups("backbone", "head", None), LRMonitor())
    assert [name for name in result.history if name.startswith("lr/")] == ["lr/SGD/backbone", "lr/SGD/head", "lr/SGD/2"]


def test_two_groups_of_one_name_stay_apart() -> None:
    result = fit_with(groups("head", "head"), LRMonitor())
    assert (result.metrics["lr/SGD/head-0"], result.metrics["lr/SGD/head-1"]) == (0.1, 0.2)


def test_each_optimizer_has_its_own_row() -> None:
    def two(parameters: Any) -> Any:
        first, *others = parameters
        return {"first": torch.optim.SGD([first], lr=0.1), "rest": torch.optim.AdamW(others, lr=0.2)}

    model = TinyModel()
    optimizers = two(model.parameters())
    with Loop(model, optimizers, callbacks=[LRMonitor()], max_duration="1ep", folder=False, device="cpu") as loop:
        for x, y in loop.batches(tiny_data()):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
    assert (loop.run.metrics["lr/first"], loop.run.metrics["lr/rest"]) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01), {"momentum": 0.9, "weight_decay": 0.01}),
        (lambda p: torch.optim.AdamW(p, betas=(0.8, 0.99)), {"momentum": 0.8, "weight_decay": 0.01}),
        (lambda p: torch.optim.Adagrad(p), {"weight_decay": 0}),
    ],
)
def test_momentum_and_weight_decay_are_logged_where_the_optimizer_has_them(optimizer: Any, expected: Any) -> None:
    metrics = fit_with(optimizer, LRMonitor(momentum=True, weight_decay=True)).metrics
    found = {name.partition("/")[0]: value for name, value in metrics.items()}
    assert {key: found[key] for key in ("momentum", "weight_decay") if key in found} == expected


def test_without_asking_only_the_rate_is_logged() -> None:
    metrics = fit_with(partial(sgd, momentum=0.9), LRMonitor()).metrics
    assert {name.partition("/")[0] for name in metrics} == {"lr", "train"}


def test_a_rate_that_is_a_tensor_is_a_row_like_any_other() -> None:
    result = fit_with(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.25), foreach=False), LRMonitor())
    assert result.history["lr/Adam"] == [0.25] * 8


def test_without_intervals_there_is_a_row_for_each_epoch() -> None:
    result = fit_with(sgd, LRMonitor(), log_every=None)
    assert result.history.steps("lr/SGD") == [4, 8]


def rows(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["value"]) for row in json_lines(folder / "metrics.jsonl") if row.get("name") == "lr/SGD"]


def test_a_row_that_a_resume_makes_up_is_of_the_step_before_it(tmp_path: Path) -> None:
    fall = partial(
        fit, optimizer=partial(sgd, lr=0.8), scheduler=falling, train=tiny_data(), val=tiny_data(), log_every=None
    )
    fall(LRMonitor(), folder=tmp_path / "whole")
    leave = at_step(4, lambda run: signal.raise_signal(signal.SIGTERM), "eval_start")
    with pytest.raises(hl.Preempted):
        fall(LRMonitor(), leave, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    fall(LRMonitor(), folder=tmp_path / "run", resume="auto")
    assert rows(tmp_path / "run") == rows(tmp_path / "whole") == [(4, 0.1), (8, 0.8 * 0.5**7)]


def test_a_monitor_that_joins_a_run_logs_the_rates_of_its_steps() -> None:
    used, monitor = UsedRates(), LRMonitor()
    join = hl.on("train_step_end", at="2st")(lambda run: run.callbacks.add(monitor))
    result = fit_with(partial(sgd, lr=0.8), used, join, scheduler=falling)
    used.check(result.history, "SGD")
    assert result.history.steps("lr/SGD")[-1] == 8


def test_after_a_crash_and_a_resume_each_step_has_one_row(tmp_path: Path) -> None:
    options: Any = {"folder": tmp_path / "run", "log_every": "2st"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_with(sgd, LRMonitor(), Checkpointer(every="4st"), crash_at(6), **options)
    fit_with(sgd, LRMonitor(), Checkpointer(every="4st"), resume="auto", **options)
    assert [step for step, _ in rows(tmp_path / "run")] == [2, 4, 6, 8]


def test_it_hears_no_event_of_a_step() -> None:
    monitor = LRMonitor(momentum=True)
    assert [event for event in STEP_EVENTS if overridden(monitor, f"on_{event}")] == []
    assert [scope for scope in ("around_step", "around_batch") if overridden(monitor, scope)] == []
