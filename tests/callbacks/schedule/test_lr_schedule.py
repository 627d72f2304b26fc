"""The learning rate over a run: the right value at each step, filled-in lengths, several optimizers, resumes."""

from __future__ import annotations

import copy
import logging
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, PolynomialLR, StepLR

from hookline.callbacks import LambdaCallback, LimitBatches
from hookline.callbacks.schedule import AccumulationSchedule, LRSchedule
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.loop import SupervisedTask, Task
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, set_time, sgd

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


def rates_of(schedule: LRSchedule, **options: Any) -> list[float]:
    rates = Rates()
    fit_val(schedule, rates, **options)
    return [rate / LR for rate in rates.lr]


def test_a_constant_rate_is_reached_after_the_warm_up() -> None:
    assert rates_of(LRSchedule("constant", warmup="4st")) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])


def test_a_linear_fall_ends_right_after_the_last_step() -> None:
    expected = [0.5, 1.0, *(1 - move / 6 for move in range(6))]
    assert rates_of(LRSchedule("linear", warmup="2st")) == pytest.approx(expected)
    assert min(expected) > 0  # no step is wasted at a rate of zero


def test_a_cosine_follows_the_formula_and_stays_above_its_end() -> None:
    expected = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * move / 8)) for move in range(8)]
    assert rates_of(LRSchedule("cosine", end=0.1)) == pytest.approx(expected)


def test_hard_restarts_begin_again_at_the_top() -> None:
    half = [0.5 * (1 + math.cos(math.pi * move / 4)) for move in range(4)]
    assert rates_of(LRSchedule("cosine_restarts", cycles=2)) == pytest.approx(half + half)


@pytest.mark.parametrize(
    ("shape", "fall"), [("sqrt", lambda x: 1 - math.sqrt(x)), ("linear", lambda x: 1 - x)], ids=["sqrt", "linear"]
)
def test_wsd_warms_up_stays_and_decays_over_its_last_part(shape: str, fall: Any) -> None:
    found = rates_of(LRSchedule("wsd", warmup="2st", decay="4st", decay_shape=shape, start=0.5), max_duration="10st")
    assert found == pytest.approx([0.75, 1, 1, 1, 1, 1, *(fall(x / 4) for x in range(4))])


def test_wsd_decays_over_a_tenth_if_nothing_else_is_said() -> None:
    assert rates_of(LRSchedule("wsd"), max_duration="20st")[-3:] == pytest.approx([1, 1, 1 - math.sqrt(0.5)])


def test_one_cycle_is_that_of_torch_with_its_momentum() -> None:
    rates = Rates()
    fit_val(LRSchedule("one_cycle", warmup=0.5), rates, max_duration="10st")
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = momentum_sgd([parameter])
    scheduler = OneCycleLR(optimizer, max_lr=LR, total_steps=10, pct_start=0.5)
    expected = []
    for _ in range(10):
        expected.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        scheduler.step()
    assert rates.lr == pytest.approx([lr for lr, _ in expected])
    assert rates.momentum == pytest.approx([momentum for _, momentum in expected])


def test_a_one_cycle_that_has_ended_holds_its_last_rate() -> None:
    found = rates_of(LRSchedule("one_cycle", total="5st"), max_duration="8st")
    assert found[5:] == pytest.approx([found[5]] * 3)


@pytest.mark.parametrize(("warmup", "steps"), [("1ep", 4), (0.25, 2), ("0.5dur", 4), ("3st", 3)])
def test_a_warm_up_is_a_duration_or_a_share(warmup: Any, steps: int) -> None:
    found = rates_of(LRSchedule("constant", warmup=warmup))
    assert found.index(pytest.approx(1.0)) == steps - 1


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({"max_duration": "3ep"}, 12),
        ({"max_duration": "7st"}, 7),
        ({"max_duration": "2ep", "accumulate": 3}, 4),
        ({"max_duration": "2ep", "train": tiny_data(5), "accumulate": 2}, 6),
    ],
)
def test_the_number_of_steps_is_filled_in(options: dict[str, Any], total: int) -> None:
    schedule = LRSchedule("linear")
    rates = Rates()
    result = fit_val(schedule, rates, **options)
    assert (schedule.lengths, result.clock.step) == ({"total": total}, total)
    assert rates.lr == pytest.approx([LR * (1 - move / total) for move in range(total)])


@pytest.mark.parametrize("plan", [{0: 4, 1: 2}, {"2st": 2, "3st": 4}, {"0.5dur": 2}])
def test_a_schedule_of_accumulation_is_counted_in(plan: Any) -> None:
    schedule = LRSchedule("linear")
    result = fit_val(schedule, AccumulationSchedule(plan), train=tiny_data(6), max_duration="3ep")
    assert schedule.lengths == {"total": result.clock.step}


def test_a_limit_of_batches_is_counted_in() -> None:
    schedule = LRSchedule("linear")
    assert fit_val(schedule, LimitBatches(train=3)).clock.step == 6
    assert schedule.lengths == {"total": 6}


def test_a_scheduler_of_torch_gets_its_length() -> None:
    rates = Rates()
    fit_val(LRSchedule(CosineAnnealingLR, eta_min=0.1), rates)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler, expected = CosineAnnealingLR(optimizer, T_max=8, eta_min=0.1), []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates.lr == pytest.approx(expected)


def test_durations_among_the_options_are_turned_into_moves() -> None:
    found = rates_of(LRSchedule(StepLR, step_size="1ep", gamma=0.5))
    assert found == pytest.approx([1.0] * 4 + [0.5] * 4)
    found = rates_of(LRSchedule(PolynomialLR, total_iters="0.5dur"))
    assert found == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0, 0, 0])


def test_by_epoch_it_moves_at_the_edge_of_each() -> None:
    assert rates_of(LRSchedule(StepLR, every="1ep", step_size=1, gamma=0.1)) == pytest.approx([1.0] * 4 + [0.1] * 4)
    assert rates_of(LRSchedule("linear", every="1ep")) == pytest.approx([1.0] * 4 + [0.5] * 4)


class CountsTokens(SupervisedTask):
    def count(self, batch: Any) -> tuple[int, int]:
        return len(batch[0]), 10 * len(batch[0])


@pytest.mark.parametrize(("unit", "a_step"), [("sp", 8), ("tok", 80)])
def test_samples_and_tokens_give_the_rate_of_what_was_trained_on(unit: str, a_step: int) -> None:
    """Epochs of 8, 8 and 2 samples: the short batch moves the rate by a quarter of the others."""
    total = a_step * 9 // 2  # of two epochs
    model = CountsTokens(TinyModel(), CE, momentum_sgd)
    options: dict[str, Any] = {"train": tiny_data(batches=3, last=2), "optimizer": None, "model": model}
    found = rates_of(LRSchedule("linear", total=f"{total}{unit}"), max_duration="2ep", **options)
    assert found == pytest.approx([1 - done / 36 for done in (0, 8, 16, 18, 26, 34)])
    assert found == pytest.approx(rates_of(LRSchedule("linear"), **options | {"max_duration": f"{total}{unit}"}))


def test_tokens_that_the_task_does_not_count_are_an_error() -> None:
    with pytest.raises(SetupError, match=r"in tokens, and no batch has told .* give the task count\("):
        fit_val(LRSchedule("linear", total="9tok"), max_duration="2st")


def test_a_warm_up_and_a_decay_in_samples() -> None:
    schedule = LRSchedule("wsd", warmup="16sp", total="64sp", decay="0.5dur", decay_shape="linear", start=0.5)
    warm_up = [0.5 + 0.5 * (done + 1) / 16 for done in (0, 8)]
    assert rates_of(schedule) == pytest.approx([*warm_up, 1, 1, *(1 - done / 32 for done in (0, 8, 16, 24))])


def test_time_gives_the_rate_of_the_seconds_before_each_step() -> None:
    now = [0.0]

    def takes(seconds: float) -> Any:
        return lambda run: now.__setitem__(0, now[0] + seconds)

    slow = LambdaCallback(on_setup=lambda run: set_time(run, lambda: now[0]), on_train_step_start=takes(600.0))
    found: list[float] = []
    rates = LambdaCallback(on_optimizer_step_start=lambda run: found.append(run.optimizer.param_groups[0]["lr"] / LR))
    result = fit_val(LRSchedule("cosine", end=0.1), slow, rates, max_duration="1h", eval_every=None)
    assert result.clock.step == 6
    assert found == pytest.approx([0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done / 6)) for done in range(6)])


def test_a_function_gets_the_optimizer_and_the_length() -> None:
    def make(optimizer: Any, total: int, power: float) -> Any:
        return PolynomialLR(optimizer, total_iters=total, power=power)

    assert rates_of(LRSchedule(make, power=1.0)) == pytest.approx([1 - move / 8 for move in range(8)])


class TwoOptimizers(Task[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: Any) -> Any:
        hidden, out = self.net.hidden.parameters(), self.net.out.parameters()
        return {"first": torch.optim.SGD(hidden, lr=0.1), "second": torch.optim.SGD(out, lr=0.2)}

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def rates_of_two(*callbacks: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"first": [], "second": []}

    def note(run: Any) -> None:
        for name, optimizer in run.optimizers.items():
            found[name].append(optimizer.param_groups[0]["lr"])

    fit(*callbacks, LambdaCallback(on_train_step_start=note), model=TwoOptimizers(), max_duration="4st")
    return found


def test_all_optimizers_are_moved_if_none_is_named() -> None:
    found = rates_of_two(LRSchedule("linear"))
    assert found["first"] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert found["second"] == pytest.approx([0.2, 0.15, 0.1, 0.05])


def test_each_optimizer_can_have_a_schedule_of_its_own() -> None:
    found = rates_of_two(
        LRSchedule("linear", optimizer="first"), LRSchedule("constant", warmup="2st", optimizer="second")
    )
    assert found["first"] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert found["second"] == pytest.approx([0.1, 0.2, 0.2, 0.2])


def test_an_optimizer_that_is_not_there_is_an_error_with_the_names() -> None:
    with pytest.raises(SetupError, match="no optimizer 'third' in this run; there is first, second"):
        rates_of_two(LRSchedule(optimizer="third"))


def test_groups_keep_their_own_rates() -> None:
    seen = []
    model = TinyModel()
    groups = [{"params": model.hidden.parameters(), "lr": 0.1}, {"params": model.out.parameters(), "lr": 1.0}]
    note = LambdaCallback(on_train_step_start=lambda run: seen.append([g["lr"] for g in groups_of(run)]))
    fit(LRSchedule("linear"), note, model=model, optimizer=torch.optim.SGD(groups), max_duration="2st")
    assert seen == [pytest.approx([0.1, 1.0]), pytest.approx([0.05, 0.5])]


def groups_of(run: Any) -> Any:
    return next(iter(run.optimizers.values())).param_groups


def test_a_second_scheduler_of_the_same_optimizer_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_val(LRSchedule("linear"), scheduler=lambda optimizer: StepLR(optimizer, 1))
    assert "LRSchedule('linear') and StepLR both move the learning rate of SGD" in caplog.text


def test_one_object_serves_two_runs() -> None:
    schedule = LRSchedule("linear")
    assert rates_of(schedule) == rates_of(schedule)


def test_what_is_wrong_is_said_when_it_is_made() -> None:
    rows: list[tuple[Any, str]] = [
        (lambda: LRSchedule("cosin"), "Did you mean 'cosine'"),
        (lambda: LRSchedule("linear", cycles=3), "no such option. It has warmup, total, start, end"),
        (lambda: LRSchedule("cosine", end=2.0), "from 0 to 1"),
        (lambda: LRSchedule("cosine_restarts", cycles=0), "must be an integer >= 1"),
        (lambda: LRSchedule("wsd", decay_shape="cubic"), "use one of sqrt, linear, cosine"),
        (lambda: LRSchedule("cosine", warmup=500), "500st"),
        (lambda: LRSchedule(StepLR, warmup="1ep", step_size=1), "SequentialLR"),
        (lambda: LRSchedule("cosine", every="1h"), "is not in steps or epochs"),
        (lambda: LRSchedule("cosine", mode="min"), "is for 'plateau' only"),
        (lambda: LRSchedule(3), "must be a string, a class or a function"),  # type: ignore[arg-type]
        (
            lambda: LRSchedule(StepLR(momentum_sgd([nn.Parameter(torch.zeros(1))]), 1)),
            "must be a string, a class or a function",
        ),
    ]
    wrong = []
    for make, message in rows:
        with pytest.raises(ArgumentError) as caught:
            make()
        if message not in str(caught.value):
            wrong.append((message, str(caught.value)))
    assert wrong == []


@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        (LRSchedule("one_cycle"), {"max_duration": "1h"}, "how many steps are '1h'"),
        (LRSchedule("linear", warmup="2st"), {"max_duration": "1h"}, "2st and 1h are in different units"),
        (LRSchedule("linear", warmup="6st", total="4st"), {}, "more than the whole schedule"),
        (LRSchedule("one_cycle", total="3st"), {}, "too few"),
        (LRSchedule(StepLR), {}, "could not be made"),
        (LRSchedule(lambda optimizer: None), {}, "not a scheduler of torch"),
        (LRSchedule("linear"), {"train": (batch for batch in tiny_data())}, "has no length"),
    ],
)
def test_what_does_not_fit_the_run_is_said_before_the_first_step(
    schedule: LRSchedule, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        fit_val(copy.copy(schedule), **options)
