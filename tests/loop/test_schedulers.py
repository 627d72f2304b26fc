"""Learning rates: by step, every so many steps, by epoch, on a plateau; equal to those of a bare loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import hookline as hl
from hookline.errors import MetricError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit

BATCHES, EPOCHS = 6, 3


class Rates(hl.Callback):
    """The learning rate of every update, and when schedulers moved."""

    def __init__(self) -> None:
        self.used: list[float] = []
        self.moved: list[int] = []

    def on_optimizer_step_start(self, run: hl.Run) -> None:
        self.used.append(run.optimizer.param_groups[0]["lr"])

    def on_scheduler_step(self, run: hl.Run) -> None:
        self.moved.append(run.clock.step)


def momentum(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.4, momentum=0.9)


def bare(
    make: Callable[[Optimizer], LRScheduler], every: int = 1, unit: str = "st", accumulate: int = 1
) -> tuple[list[float], nn.Module]:
    """The rates and the model of a loop written by hand."""
    model, used, step = TinyModel(), [], 0
    optimizer = momentum(model.parameters())
    scheduler = make(optimizer)
    for epoch in range(1, EPOCHS + 1):
        batches = tiny_data(BATCHES)
        for start in range(0, BATCHES, accumulate):
            x, y = (torch.cat(part) for part in zip(*batches[start : start + accumulate], strict=True))
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            step += 1
            if unit == "st" and step % every == 0:
                scheduler.step()
        if unit == "ep" and epoch % every == 0:
            scheduler.step()
    return used, model


def fit_rates(scheduler: Any, *callbacks: Any, **options: Any) -> tuple[Rates, nn.Module, hl.Result]:
    rates, train = Rates(), tiny_data(BATCHES)
    options = {"max_duration": f"{EPOCHS}ep", "optimizer": momentum, **options}
    result = fit(rates, *callbacks, train=train, scheduler=scheduler, **options)
    return rates, result.model, result


MAKERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "exponential": lambda o: ExponentialLR(o, 0.9),
    "step": lambda o: StepLR(o, 4, 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, BATCHES * EPOCHS),
    "lambda": lambda o: LambdaLR(o, lambda n: 1 / (n + 1)),
    "one cycle": lambda o: OneCycleLR(o, 0.5, total_steps=BATCHES * EPOCHS),
    "sequential": lambda o: SequentialLR(o, [LambdaLR(o, lambda n: (n + 1) / 5), ExponentialLR(o, 0.8)], [5]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_plain_scheduler_moves_at_every_step(kind: str) -> None:
    rates, model, _ = fit_rates(MAKERS[kind])
    used, other = bare(MAKERS[kind])
    assert rates.used == used
    assert len(rates.moved) == BATCHES * EPOCHS
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("every", "number", "unit"), [("2st", 2, "st"), ("4st", 4, "st"), ("1ep", 1, "ep"), ("2ep", 2, "ep")]
)
def test_every_so_many_steps_or_epochs(every: str, number: int, unit: str) -> None:
    rates, _, _ = fit_rates(lambda optimizer: hl.Scheduler(ExponentialLR(optimizer, 0.5), every=every))
    assert rates.used == bare(lambda o: ExponentialLR(o, 0.5), number, unit)[0]
    assert len(rates.moved) == (BATCHES * EPOCHS if unit == "st" else EPOCHS) // number


def test_the_scheduler_step_event_by_epoch_is_sent_at_the_edge_of_the_epoch() -> None:
    rates, _, _ = fit_rates(lambda optimizer: hl.Scheduler(ExponentialLR(optimizer, 0.5), every="1ep"))
    assert rates.moved == [6, 12, 18]


@pytest.mark.parametrize("accumulate", [2, 4])
def test_with_accumulation_a_step_is_an_update(accumulate: int) -> None:
    rates, _, result = fit_rates(MAKERS["exponential"], accumulate=accumulate)
    assert rates.used == bare(MAKERS["exponential"], accumulate=accumulate)[0]
    assert result.clock.step == len(rates.used) == len(rates.moved)


@pytest.mark.parametrize("loader", ["list", "no length"])
def test_by_epoch_with_and_without_a_length(loader: str) -> None:
    class NoLength:
        def __iter__(self) -> Any:
            return iter(tiny_data(BATCHES))

    rates = Rates()
    Trainer(max_duration="3ep", callbacks=[rates], folder=False).fit(
        TinyModel(),
        tiny_data(BATCHES) if loader == "list" else NoLength(),
        loss=nn.CrossEntropyLoss(),
        optimizer=momentum,
        scheduler=lambda optimizer: hl.Scheduler(ExponentialLR(optimizer, 0.5), every="1ep"),
    )
    assert rates.used == bare(lambda o: ExponentialLR(o, 0.5), 1, "ep")[0]


# -- forms -------------------------------------------------------------------------------------


def test_an_instance_a_list_and_the_task_give_the_same() -> None:
    expected = bare(MAKERS["exponential"])[0]

    class OfTask(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            optimizer = momentum(self.parameters())
            return optimizer, MAKERS["exponential"](optimizer)

    def fitted(model: nn.Module, **kwargs: Any) -> list[float]:
        rates = Rates()
        Trainer(max_duration="3ep", callbacks=[rates], folder=False).fit(model, tiny_data(BATCHES), **kwargs)
        return rates.used

    model = TinyModel()
    optimizer = momentum(model.parameters())
    one = fitted(model, loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=MAKERS["exponential"](optimizer))
    model = TinyModel()
    optimizer = momentum(model.parameters())
    several = fitted(
        model, loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=[MAKERS["exponential"](optimizer)]
    )
    assert one == several == fitted(OfTask(TinyModel(), nn.CrossEntropyLoss())) == expected


def test_several_schedulers_of_one_optimizer() -> None:
    def both(optimizer: Optimizer) -> list[Any]:
        return [ExponentialLR(optimizer, 0.9), hl.Scheduler(ExponentialLR(optimizer, 0.5), every="1ep")]

    model, rates = TinyModel(), Rates()
    optimizer = momentum(model.parameters())
    trainer = Trainer(max_duration="2ep", callbacks=[rates], folder=False)
    trainer.fit(model, tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=both(optimizer))
    assert rates.used == pytest.approx([0.4 * 0.9**n * (0.5 if n >= 3 else 1) for n in range(6)])


def test_the_own_loop() -> None:
    rates, model = Rates(), TinyModel()
    with Loop(
        model, momentum, scheduler=MAKERS["cosine"], callbacks=[rates], max_duration=f"{EPOCHS}ep", folder=False
    ) as loop:
        for x, y in loop.batches(tiny_data(BATCHES)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert rates.used == bare(MAKERS["cosine"])[0]


def test_each_optimizer_has_its_scheduler() -> None:
    class Two(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = TinyModel(seed=1), TinyModel(seed=2)
            self.rates: dict[str, list[float]] = {"first": [], "second": []}

        def configure_optimizers(self, run: hl.Run) -> Any:
            first, second = momentum(self.first.parameters()), momentum(self.second.parameters())
            return {"first": first, "second": second}, [ExponentialLR(first, 0.5), StepLR(second, 2, 0.1)]

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            x, y = batch
            for name, optimizer in run.optimizers.items():
                self.rates[name].append(optimizer.param_groups[0]["lr"])
                run.loop.backward(cross_entropy(getattr(self, name)(x), y), optimizer)
                run.loop.step(optimizer)

    task = Two()
    Trainer(max_duration="1ep", folder=False).fit(task, tiny_data(4))
    assert task.rates["first"] == pytest.approx([0.4, 0.2, 0.1, 0.05])
    assert task.rates["second"] == pytest.approx([0.4, 0.4, 0.04, 0.04])


def test_an_optimizer_that_steps_several_times_a_batch_moves_a_scheduler_of_steps_once() -> None:
    """``every="2st"`` counts steps of the run; three updates inside one step are one step."""

    class Critic(hl.SupervisedTask):
        def configure_optimizers(self, run: hl.Run) -> Any:
            optimizer = momentum(self.parameters())
            return optimizer, hl.Scheduler(ExponentialLR(optimizer, 0.5), every="2st")

        def train_batch(self, run: hl.Run, batch: Any) -> None:
            for _ in range(3):
                run.loop.backward(super().train_batch(run, batch))
                run.loop.step(run.optimizers["SGD"])

    rates = Rates()
    Trainer(max_duration="1ep", callbacks=[rates], folder=False).fit(
        Critic(TinyModel(), nn.CrossEntropyLoss()), tiny_data(4)
    )
    assert rates.used[::3] == pytest.approx([0.4, 0.4, 0.2, 0.2])


def test_schedulers_can_be_added_and_removed_on_run() -> None:
    """``run.schedulers`` alone is stepped, so a callback adds its own there."""

    @hl.on("train_start")
    def add(run: hl.Run) -> None:
        run.schedulers.append(hl.Scheduler(ExponentialLR(run.optimizers["SGD"], 0.5), every="1ep"))

    rates, _, _ = fit_rates(None, add)
    assert rates.used == bare(lambda o: ExponentialLR(o, 0.5), 1, "ep")[0]


# -- plateau -----------------------------------------------------------------------------------


class Says(hl.SupervisedTask):
    """Logs made-up metrics in evaluation, one value after the other."""

    def __init__(self, values: list[float], name: str = "loss", **kwargs: Any) -> None:
        super().__init__(TinyModel(), nn.CrossEntropyLoss(), momentum, **kwargs)
        self.values = values
        self.name_logged = name
        self.evaluations = 0

    def on_eval_start(self, run: hl.Run) -> None:
        self.evaluations += 1

    def eval_batch(self, run: hl.Run, batch: Any) -> None:
        run.log({self.name_logged: self.values[max(0, self.evaluations - 1)]})


def plateau(monitor: str | None = None, **options: Any) -> Callable[[Optimizer], Any]:
    def make(optimizer: Optimizer) -> Any:
        scheduler = ReduceLROnPlateau(optimizer, factor=0.1, patience=0, **options)
        return scheduler if monitor is None else hl.Scheduler(scheduler, monitor=monitor)

    return make


@pytest.mark.parametrize("monitor", [None, "val/loss"])
def test_plateau_moves_after_each_evaluation(monitor: str | None) -> None:
    rates = Rates()
    task = Says([1.0, 0.5, 0.5, 0.4], scheduler=plateau(monitor))
    Trainer(max_duration="4ep", callbacks=[rates], folder=False).fit(task, tiny_data(2), tiny_data(2))
    assert rates.used == pytest.approx([0.4] * 6 + [0.04] * 2)
    assert rates.moved == [2, 4, 6, 8]


def test_plateau_on_another_metric() -> None:
    rates = Rates()
    task = Says([0.1, 0.2, 0.2, 0.9], "acc", scheduler=plateau("val/acc", mode="max"))
    Trainer(max_duration="4ep", callbacks=[rates], folder=False).fit(task, tiny_data(2), tiny_data(2))
    assert rates.used == pytest.approx([0.4] * 6 + [0.04] * 2)


@pytest.mark.parametrize("monitor", [None, "train/loss"])
def test_plateau_without_any_evaluation_is_an_error_and_not_a_rate_that_stays(monitor: str | None) -> None:
    with pytest.raises(MetricError, match=r"after each evaluation, but fit got no validation loader"):
        fit_rates(plateau(monitor))


def test_plateau_that_has_waited_for_evaluations_in_vain_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can know before the end: a callback may ask for an evaluation."""
    task = Says([1.0], scheduler=plateau())
    Trainer(max_duration="2ep", eval_every=None, folder=False).fit(task, tiny_data(2), tiny_data(2))
    said = "ReduceLROnPlateau (on 'val/loss') never stepped: it needs evaluations, and none was made (eval_every=None)"
    assert said in caplog.text
    caplog.clear()
    asks = hl.LambdaCallback(on_train_step_end=lambda run: run.request_eval())
    Trainer(max_duration="1ep", eval_every=None, folder=False, callbacks=[asks]).fit(
        Says([1.0] * 9, scheduler=plateau()), tiny_data(2), tiny_data(2)
    )
    assert "never stepped" not in caplog.text


def test_plateau_of_an_own_loop_that_never_evaluates_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = TinyModel()
    optimizer = momentum(model.parameters())
    with Loop(model, optimizer, scheduler=plateau()(optimizer), max_duration="2ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    assert "never stepped: it needs evaluations, and none was made (eval_every=1ep)" in caplog.text


def test_plateau_by_eval_every_steps() -> None:
    rates = Rates()
    task = Says([1.0, 2.0, 3.0, 3.0], scheduler=plateau())
    Trainer(max_duration="6st", eval_every="2st", callbacks=[rates], folder=False).fit(task, tiny_data(6), tiny_data(2))
    assert rates.used == pytest.approx([0.4] * 4 + [0.04] * 2)


def test_plateau_equals_a_bare_loop_on_a_real_loss() -> None:
    val, rates, model = tiny_data(3, seed=4), Rates(), TinyModel()
    make = plateau(threshold=0.2)
    result = Trainer(max_duration="6ep", callbacks=[rates], folder=False).fit(
        model, tiny_data(BATCHES), val, loss=nn.CrossEntropyLoss(), optimizer=momentum, scheduler=make
    )
    other, used, losses = TinyModel(), [], []
    optimizer = momentum(other.parameters())
    scheduler = make(optimizer)
    for _ in range(6):
        for x, y in tiny_data(BATCHES):
            optimizer.zero_grad()
            cross_entropy(other(x), y).backward()
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
        with torch.no_grad():
            losses.append(sum(float(cross_entropy(other(x), y)) * len(y) for x, y in val) / sum(len(y) for _, y in val))
        scheduler.step(losses[-1])
    assert result.history["val/loss"] == pytest.approx(losses, rel=1e-6)
    assert rates.used == pytest.approx(used)
    assert len(set(rates.used)) > 1


def test_plateau_in_the_own_loop() -> None:
    model, rates = TinyModel(), Rates()
    with Loop(
        model, momentum, scheduler=plateau(), callbacks=[rates], max_duration="3ep", eval_every="1ep", folder=False
    ) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for _ in loop.eval_batches(tiny_data(2)):
                    loop.run.log({"loss": 1.0})
    assert rates.used == pytest.approx([0.4] * 4 + [0.04] * 2)


@pytest.mark.parametrize("monitor", [None, "val/f1"])
def test_plateau_on_a_metric_that_nobody_logs(monitor: str | None) -> None:
    """Found before step 1: the sanity check learns which metrics there are."""
    steps = []
    note = hl.on("train_step_end")(lambda run: steps.append(run.clock.step))
    task = Says([0.1] * 9, "acc", scheduler=plateau(monitor))
    with pytest.raises(MetricError, match=f"(?s){monitor or 'val/loss'}.*val/acc"):
        Trainer(max_duration="2ep", callbacks=[note], folder=False).fit(task, tiny_data(2), tiny_data(2))
    assert steps == []


def test_plateau_without_any_evaluation_is_said() -> None:
    """It would never move: an error or a warning, not silence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit_rates(plateau())
        except hl.HooklineError:
            return
    assert any(issubclass(w.category, hl.HooklineWarning) for w in caught)


@pytest.mark.parametrize("verb", ["evaluate", "predict", "run.evaluate"])
def test_an_evaluation_for_its_own_sake_does_not_move_a_scheduler(verb: str) -> None:
    task = Says([1.0] * 99, scheduler=plateau())
    asks = [hl.on("train_step_end")(lambda run: run.evaluate("val"))] if verb == "run.evaluate" else []
    made: list[Any] = []
    note = hl.on("fit_start")(lambda run: made.extend(run.schedulers))
    trainer = Trainer(max_duration="1ep", callbacks=[*asks, note], folder=False)
    trainer.fit(task, tiny_data(3), tiny_data(2))
    (scheduler,) = made
    before = dict(scheduler.scheduler.state_dict())
    if verb == "evaluate":
        trainer.evaluate(task, tiny_data(2))
        trainer.evaluate(task, tiny_data(2))
    elif verb == "predict":
        trainer.predict(task, tiny_data(2))
    assert scheduler.scheduler.state_dict() == before
    assert scheduler.scheduler.optimizer.param_groups[0]["lr"] == 0.4
    assert before["last_epoch"] == 1


# -- bad input -----------------------------------------------------------------------------------


def test_a_scheduler_of_another_optimizer() -> None:
    foreign = ExponentialLR(momentum([nn.Parameter(torch.zeros(1))]), 0.9)
    with pytest.raises(SetupError, match="made for an optimizer that this run does not have"):
        fit_rates(foreign)


def test_a_mistake_is_found_again_by_a_second_fit() -> None:
    """The same call after an error must not train without the scheduler."""
    foreign, model = ExponentialLR(momentum([nn.Parameter(torch.zeros(1))]), 0.9), TinyModel()
    trainer, loss = Trainer(max_duration="1ep", folder=False), nn.CrossEntropyLoss()
    for _ in range(2):
        with pytest.raises(SetupError, match="optimizer that this run does not have"):
            trainer.fit(model, tiny_data(), loss=loss, optimizer=momentum, scheduler=foreign)


@pytest.mark.parametrize("given", [0.1, "cosine", object()])
def test_not_a_scheduler(given: Any) -> None:
    with pytest.raises(hl.HooklineError, match="scheduler"):
        fit_rates(given)


@pytest.mark.parametrize("every", ["10s", "5sp", "0.5dur", "3", "2ba", 7])
def test_every_must_be_steps_or_epochs(every: Any) -> None:
    optimizer = momentum([nn.Parameter(torch.zeros(1))])
    with pytest.raises(hl.HooklineError, match="st"):
        hl.Scheduler(ExponentialLR(optimizer, 0.9), every=every)


def test_a_function_with_several_optimizers() -> None:
    model = TinyModel()
    optimizers = [momentum(model.hidden.parameters()), momentum(model.out.parameters())]
    with pytest.raises(SetupError, match="configure_optimizers"):
        Trainer(max_duration="1ep", folder=False).fit(
            model,
            tiny_data(),
            loss=nn.CrossEntropyLoss(),
            optimizer=optimizers,
            scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9),
        )


def test_no_warning_of_torch_about_the_order() -> None:
    """Torch warns when a scheduler moves before its optimizer; the suite makes every warning an error."""
    rates, _, _ = fit_rates(MAKERS["one cycle"], precision="bf16")
    assert len(rates.used) == BATCHES * EPOCHS


def test_a_tensor_learning_rate_is_left_as_it_is() -> None:
    def adam(parameters: Any) -> Optimizer:
        return torch.optim.Adam(parameters, lr=torch.tensor(0.1), capturable=False, foreach=False)

    model = TinyModel()
    Trainer(max_duration="2ep", folder=False).fit(
        model,
        tiny_data(2),
        loss=nn.CrossEntropyLoss(),
        optimizer=adam,
        scheduler=lambda optimizer: ExponentialLR(optimizer, 0.5),
    )
    trained: list[Tensor] = list(model.parameters())
    assert all(p.isfinite().all() for p in trained)
