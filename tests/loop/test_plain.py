"""A trainer's text of a step and the halves of a custom loop are one step: a user cannot tell them apart."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import loop_of
from tests.support.inside import is_of_torch, set_accumulation, steps_by_halves, watch_general_steps

BATCHES = 9


class Seen(hl.Callback):
    """What a callback sees that hears no step, but what comes between some of them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_metrics_ready(self, run: hl.Run) -> None:
        self.seen.append(("metrics", run.clock.step, dict(run.metrics), run.loss.item(), run.outputs.shape))
        self.seen.append((len(run.batch), dict(run.clock.updates)))

    def on_eval_start(self, run: hl.Run) -> None:
        self.seen.append(("eval", run.clock.step))

    def on_epoch_end(self, run: hl.Run) -> None:
        self.seen.append(("epoch", run.clock.epoch, run.clock.step))

    def on_stop(self, run: hl.Run) -> None:
        self.seen.append(("stop", run.clock.step, run.stop_reason))

    def on_exception(self, run: hl.Run) -> None:
        self.seen.append(("exception", run.clock.step, run.clock.batch, type(run.exception).__name__))
        self.seen.append(len(run.batch) if getattr(run, "batch", None) is not None else None)
        self.seen.append((self.values_of(run), dict(run.clock.updates)))

    def values_of(self, run: hl.Run) -> list[bool]:
        return [hasattr(run, name) for name in ("batch", "outputs", "loss", "optimizer")]


class SeesSteps(Seen):
    """Hears the two ends of each step, too."""

    def on_train_step_start(self, run: hl.Run) -> None:
        self.seen.append(("start", run.clock.step, run.clock.batch, self.values_of(run), dict(run.clock.updates)))

    def on_train_step_end(self, run: hl.Run) -> None:
        pending = run.metrics.get("train/loss")
        self.seen.append(("end", run.clock.step, run.loss.item(), run.outputs.shape, pending))


class Hearing(hl.Callback):
    """Hears something inside each step."""

    def on_zero_grad(self, run: hl.Run) -> None:
        pass


class Case:
    """One run, built anew for each way; the methods are what the cases change."""

    callbacks: tuple[Callable[[], hl.Callback], ...] = ()
    options: ClassVar[dict[str, Any]] = {}

    def task(self, model: nn.Module) -> nn.Module:
        return hl.SupervisedTask(
            model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        )

    def data(self) -> Any:
        return tiny_data(batches=BATCHES)

    def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
        return trainer.fit(task, data, tiny_data(batches=2))


def outcome(case: type[Case], *, plain: bool, heard: bool, accumulate: int = 1) -> dict[str, Any]:
    """Everything that one can see of a run."""
    torch.manual_seed(3)
    model, seen, its = TinyModel(), SeesSteps() if heard else Seen(), case()
    given: list[object] = [seen, *(make() for make in its.callbacks), *(() if plain else (Hearing(),))]
    options: ClassVar[dict[str, Any]] = {
        "max_duration": "2ep",
        "log_every": "4st",
        "folder": False,
        "device": "cpu",
        "accumulate": accumulate,
        **its.options,
    }
    trainer = Trainer(callbacks=given, **options)
    task, error, result = its.task(model), None, None
    with nullcontext() if plain else steps_by_halves():
        try:
            result = its.train(trainer, task, its.data())
        except (Exception, SystemExit) as raised:
            error = raised
    loop = loop_of(trainer)
    clock = loop.run.clock
    return {
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "gradients": [parameter.grad is None for parameter in model.parameters()],
        "clock": (clock.epoch, clock.step, clock.batch, clock.sample, clock.token, dict(clock.updates)),
        "seen": seen.seen,
        "history": [(row.name, row.step, row.epoch, row.value, row.kind) for row in loop.run.history.rows()],
        "error": None if error is None else (type(error), str(error), getattr(error, "__notes__", [])),
        "result": None if result is None else (result.stop_reason, result.stopped_by, result.metrics),
        "noted": getattr(its, "noted", None),
    }


class Usual(Case):
    pass


class WithoutMetrics(Case):
    options: ClassVar[dict[str, Any]] = {"log_every": None}


class BySteps(Case):
    options: ClassVar[dict[str, Any]] = {"max_duration": "13st", "eval_every": "5st"}


class BySamples(Case):
    options: ClassVar[dict[str, Any]] = {"max_duration": "77sp"}


class OneStep(Case):
    options: ClassVar[dict[str, Any]] = {"max_duration": "1st"}


class WithScheduler(Case):
    def task(self, model: nn.Module) -> nn.Module:
        task: Any = super().task(model)
        task.scheduler = torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)
        return task  # type: ignore[no-any-return]


class UnknownLength(Case):
    def data(self) -> Any:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield from tiny_data(batches=BATCHES)

        return Stream()


def at(step: int, event: str, act: Callable[[hl.Run], None]) -> Callable[[], hl.Callback]:
    def hook(run: hl.Run) -> None:
        if run.clock.step == step:
            act(run)

    return lambda: hl.LambdaCallback(**{event: hook})  # type: ignore[arg-type]


class SkipsAtStart(Case):
    callbacks = (at(4, "on_train_step_start", lambda run: run.skip_step() if run.clock.batch == 4 else None),)


class StopsAtEnd(Case):
    callbacks = (at(5, "on_train_step_end", lambda run: run.stop("enough")),)


class AsksForEvaluation(Case):
    callbacks = (at(5, "on_train_step_end", lambda run: run.request_eval()),)


class EvaluatesAtEnd(Case):
    callbacks = (at(5, "on_train_step_end", lambda run: run.log({"seen": run.evaluate("val")["val/loss"]})),)


class AddsOneThatHears(Case):
    def __init__(self) -> None:
        heard: list[tuple[str, int]] = []

        class Late(hl.Callback):
            def on_train_batch_start(self, run: hl.Run) -> None:
                heard.append(("batch", run.clock.step))

            def on_backward_end(self, run: hl.Run) -> None:
                heard.append(("backward", run.clock.step))

            def on_train_end(self, run: hl.Run) -> None:
                run.log({"heard": float(len(heard)), "first": float(heard[0][1])})

        self.callbacks = (at(3, "on_train_step_start", lambda run: run.callbacks.add(Late())),)


class HookFails(Case):
    callbacks = (at(5, "on_train_step_end", lambda run: 1 / 0),)  # type: ignore[arg-type, return-value]


class HookFailsAtStart(Case):
    callbacks = (at(5, "on_train_step_start", lambda run: 1 / 0),)  # type: ignore[arg-type, return-value]


class ChangesTheBatch(Case):
    def __init__(self) -> None:
        def halve(run: hl.Run) -> None:
            run.batch = (run.batch[0][:2], run.batch[1][:2])  # type: ignore[misc]

        self.callbacks = (at(5, "on_train_step_start", halve),)


class ChangesTheBatchToThree(Case):
    """Of which the model cannot take the first two: an error, and the same one."""

    def __init__(self) -> None:
        def extend(run: hl.Run) -> None:
            run.batch = (*run.batch, 1.0)

        self.callbacks = (at(5, "on_train_step_start", extend),)


class AddsOneAtTheEnd(AddsOneThatHears):
    def __init__(self) -> None:
        super().__init__()
        ((start,), act) = (self.callbacks, "on_train_step_end")
        hook = start().on_train_step_start  # type: ignore[attr-defined]
        self.callbacks = (lambda: hl.LambdaCallback(**{act: hook}),)


class ReplacesTheLoss(Case):
    """By one that gives a weight, too."""

    def __init__(self) -> None:
        class Weighted(nn.Module):
            def forward(self, outputs: Tensor, targets: Tensor) -> Any:
                return nn.functional.cross_entropy(outputs, targets), 3.0

        def replace(run: hl.Run) -> None:
            run.task.loss = Weighted()  # type: ignore[union-attr]

        self.callbacks = (at(5, "on_train_step_end", replace),)


class ReplacesTheLossBeforeTraining(Case):
    """By another of torch, whose losses weigh otherwise. Without an evaluation, nothing else notices it."""

    def __init__(self) -> None:
        def replace(run: hl.Run) -> None:
            run.task.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))  # type: ignore[union-attr]

        self.callbacks = (lambda: hl.LambdaCallback(on_train_start=replace),)

    def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
        return trainer.train(task, data)


class SchedulerStops(Case):
    """``StopTraining`` in neither a hook nor the task ends training as any stop does."""

    def task(self, model: nn.Module) -> nn.Module:
        class Stops(torch.optim.lr_scheduler.ExponentialLR):
            def step(self, epoch: int | None = None) -> None:
                if self.last_epoch == 4:
                    raise hl.StopTraining("the scheduler has enough")
                super().step()

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return hl.SupervisedTask(model, nn.CrossEntropyLoss(), optimizer, Stops(optimizer, 0.9))


class ReplacesTheModel(Case):
    def __init__(self) -> None:
        def replace(run: hl.Run) -> None:
            run.task.model = nn.Sequential(run.task.model, nn.Tanh())  # type: ignore[union-attr]

        self.callbacks = (at(5, "on_train_step_start", replace),)


class ReplacesTheOptimizer(Case):
    def __init__(self) -> None:
        def replace(run: hl.Run) -> None:
            run.optimizers["SGD"] = torch.optim.SGD(run.model.parameters(), lr=1.0)  # type: ignore[index]

        self.callbacks = (at(5, "on_train_step_end", replace),)


class AddsAScheduler(Case):
    """In the middle of an interval, and before the update of the same step."""

    def __init__(self) -> None:
        def add(run: hl.Run) -> None:
            run.schedulers.append(hl.Scheduler(torch.optim.lr_scheduler.ExponentialLR(run.optimizers["SGD"], 0.5)))

        self.callbacks = (at(5, "on_train_step_start", add),)


class OwnZeroGrad(Case):
    """An optimizer that does more when it clears its gradients than to clear them."""

    def task(self, model: nn.Module) -> nn.Module:
        class Decays(torch.optim.SGD):
            def zero_grad(self, set_to_none: bool = True) -> None:
                super().zero_grad(set_to_none)
                for group in self.param_groups:
                    group["lr"] *= 0.9

        return hl.SupervisedTask(model, nn.CrossEntropyLoss(), Decays(model.parameters(), lr=0.1))


class PatchedZeroGrad(Case):
    """Of one optimizer, as a wrapper of the user's does it."""

    def task(self, model: nn.Module) -> nn.Module:
        task: Any = super().task(model)
        inner, self.noted = task.optimizer.zero_grad, []

        def zero_grad(set_to_none: bool = True) -> None:
            self.noted.append(len(self.noted))
            inner(set_to_none)

        task.optimizer.zero_grad = zero_grad
        return task  # type: ignore[no-any-return]


class Accumulates(Case):
    def __init__(self) -> None:
        def change(run: hl.Run) -> None:
            set_accumulation(run, 2)

        self.callbacks = (at(4, "on_train_step_end", change),)


class Model(nn.Module):
    """Does something else at its seventh batch."""

    def __init__(self, inner: nn.Module, seventh: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.seventh, self.calls = inner, seventh, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        found: Tensor = self.inner(x)
        return self.seventh(found) if self.training and self.calls == 7 else found


def model_that(seventh: Callable[[Tensor], Tensor]) -> type[Case]:
    class Own(Case):
        def task(self, model: nn.Module) -> nn.Module:
            return super().task(Model(model, seventh))

    return Own


def fails(error: BaseException) -> Callable[[Tensor], Tensor]:
    def act(outputs: Tensor) -> Tensor:
        raise error

    return act


def fails_in_backward(outputs: Tensor) -> Tensor:
    def act(gradient: Tensor) -> None:
        raise ZeroDivisionError("in the backward")

    outputs.register_hook(act)
    return outputs


class DropsItsFirstWindow(Case):
    """Windows of two begin with the sixth batch, and the seventh stops the run: the sixth does not count."""

    event = "on_train_step_end"

    def __init__(self) -> None:
        def change(run: hl.Run) -> None:
            set_accumulation(run, 2)

        self.callbacks = (at(5, self.event, change),)

    def task(self, model: nn.Module) -> nn.Module:
        return super().task(Model(model, fails(hl.StopTraining("enough"))))


class DropsAWindowBegunByAHook(DropsItsFirstWindow):
    event = "on_train_step_start"


class OneInThree(Case):
    """Batches of other kinds among the usual ones."""

    def data(self) -> Any:
        return [(x, y) if number % 3 else [x[:3], y[:3]] for number, (x, y) in enumerate(tiny_data(batches=BATCHES))]


class Scalars(Case):
    """Inputs without a dimension count as one sample."""

    def task(self, model: nn.Module) -> nn.Module:
        class Grown(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Tensor) -> Tensor:
                found: Tensor = self.inner(x.reshape(1, 1).expand(4, 4))
                return found

        return super().task(Grown())

    def data(self) -> Any:
        return [(x.mean(), y[:4]) for x, y in tiny_data(batches=BATCHES)]

    def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
        return trainer.fit(task, data)


OFTEN: dict[str, Any] = {"max_duration": "13st", "eval_every": "5st"}


class ANewBatchInEachStep(Case):
    """As by a callback that mixes samples: what is due must not wait for a step that is plain."""

    options: ClassVar[dict[str, Any]] = OFTEN

    def __init__(self) -> None:
        def mix(run: hl.Run) -> None:
            run.batch = (run.batch[0] * 1.0, run.batch[1])

        self.callbacks = (lambda: hl.LambdaCallback(on_train_step_start=mix),)


class SkipsEverySecond(Case):
    options: ClassVar[dict[str, Any]] = {"max_duration": "7st", "eval_every": "2st"}

    def __init__(self) -> None:
        def skip(run: hl.Run) -> None:
            if run.clock.batch % 2:
                run.skip_step()

        self.callbacks = (lambda: hl.LambdaCallback(on_train_step_start=skip),)


class TakesMore(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, more: Any = None) -> Tensor:
        found: Tensor = self.inner(x)
        return found


class ThreeParts(Case):
    def task(self, model: nn.Module) -> nn.Module:
        return super().task(TakesMore(model))

    def data(self) -> Any:
        return [(x, x, y) for x, y in tiny_data(batches=BATCHES)]


class GrowsTheBatch(ThreeParts):
    """In place, as the lists of a loader can be."""

    def __init__(self) -> None:
        self.callbacks = (at(5, "on_train_step_start", lambda run: run.batch.insert(1, torch.ones(1))),)

    def data(self) -> Any:
        return [list(batch) for batch in tiny_data(batches=BATCHES)]


class Hooked(hl.Callback):
    """Looks from inside the model."""

    def __init__(self) -> None:
        self.calls = self.same = 0

    def on_train_start(self, run: hl.Run) -> None:
        def look(module: nn.Module, given: Any, outputs: Tensor) -> None:
            if run.stage == "train":
                self.calls += 1
                self.same += hasattr(run, "batch") and run.batch[0] is given[0]
                if self.calls == 6:
                    run.skip_step()

        self.handle = run.task.model.register_forward_hook(look)  # type: ignore[union-attr, operator]

    def on_train_end(self, run: hl.Run) -> None:
        run.log({"calls": float(self.calls), "same": float(self.same)})


class SkipsInTheForward(Case):
    callbacks = (Hooked,)


class FailsAfterTheBatchWasHalved(ChangesTheBatch):
    def task(self, model: nn.Module) -> nn.Module:
        return hl.SupervisedTask(model, nn.CrossEntropyLoss(), failing(ArithmeticError("sixth"))(model.parameters()))


class FailsWithTheChangedBatch(Case):
    def __init__(self) -> None:
        def change(run: hl.Run) -> None:
            run.batch = (run.batch[0], run.batch[1][:1])

        self.callbacks = (at(5, "on_train_step_start", change),)


class OptimizerStops(Case):
    def task(self, model: nn.Module) -> nn.Module:
        return hl.SupervisedTask(model, nn.CrossEntropyLoss(), failing(hl.StopTraining("sixth"))(model.parameters()))


class SchedulerFails(Case):
    def task(self, model: nn.Module) -> nn.Module:
        class Fails(torch.optim.lr_scheduler.LRScheduler):
            def get_lr(self) -> Any:
                if self.last_epoch == 6:
                    raise ArithmeticError("the rate is gone")
                return [group["lr"] for group in self.optimizer.param_groups]

        task: Any = super().task(model)
        task.scheduler = Fails(task.optimizer)
        return task  # type: ignore[no-any-return]


def failing(error: BaseException) -> type[torch.optim.SGD]:
    """An optimizer whose sixth step fails."""

    class Fails(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            if self.calls == 6:
                raise error
            return super().step(closure)

    return Fails


def stops_in_backward(outputs: Tensor) -> Tensor:
    def act(gradient: Tensor) -> None:
        raise hl.StopTraining("in the backward")

    outputs.register_hook(act)
    return outputs


class OwnTask(hl.Task[Any]):
    """A task that does something else at its seventh batch."""

    def __init__(self, model: nn.Module, seventh: Callable[[OwnTask, hl.Run, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.seventh, self.batches = model, seventh, 0

    def configure_optimizers(self, run: hl.Run) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        self.batches += 1
        run.outputs = self.model(batch[0])
        loss = nn.functional.cross_entropy(run.outputs, batch[1])
        return self.seventh(self, run, loss) if self.batches == 7 else loss

    def eval_batch(self, run: hl.Run, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])


class AddsInEachStep(Case):
    """A second loss, in every step."""

    options: ClassVar[dict[str, Any]] = OFTEN

    def task(self, model: nn.Module) -> nn.Module:
        class Adds(OwnTask):
            def train_batch(self, run: hl.Run, batch: Any) -> Any:
                run.loop.backward(super().train_batch(run, batch), weight=len(batch[0]))
                return sum(parameter.square().sum() for parameter in self.parameters()) * 1e-3

        return Adds(model, lambda task, run, loss: loss)


def task_that(seventh: Callable[[Any, hl.Run, Tensor], Any]) -> type[Case]:
    class Own(Case):
        def task(self, model: nn.Module) -> nn.Module:
            return OwnTask(model, seventh)

    return Own


class Watching(hl.Callback):
    """Hooks of torch's that hold the run: on the model, a gradient and the optimizer. One may ask to skip a step."""

    def __init__(self, skips: bool, seen: list[Any]) -> None:
        self._skips, self._seen = skips, seen

    def on_fit_start(self, run: hl.Run) -> None:
        def look(where: str) -> None:
            clock = run.clock
            there = [hasattr(run, name) for name in ("batch", "outputs", "loss", "optimizer")]
            self._seen.append((where, clock.step, clock.batch, clock.sample, dict(clock.updates), there))

        def of_gradient(gradient: Tensor) -> None:
            look("gradient")
            if self._skips and run.clock.batch in (4, 13):
                run.skip_step()

        run.task.model.register_forward_pre_hook(lambda *_: look("forward"))  # type: ignore[union-attr, operator]
        next(run.model.parameters()).register_hook(of_gradient)
        for optimizer in run.optimizers.values():
            optimizer.register_step_pre_hook(lambda *_: look("before the update"))  # type: ignore[arg-type]
            optimizer.register_step_post_hook(lambda *_: look("after the update"))  # type: ignore[arg-type]


def watched(base: type[Case], *, skips: bool) -> type[Case]:
    class Watched(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.noted: list[Any] = []
            self.callbacks = (lambda: Watching(skips, self.noted),)

        def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
            class Looks(list[Any]):
                def __iter__(this) -> Iterator[Any]:  # noqa: N805
                    for batch in list.__iter__(this):
                        run = loop_of(trainer).run
                        self.noted.append(("fetch", hasattr(run, "batch"), hasattr(run, "loss")))
                        yield batch

            return super().train(trainer, task, Looks(data))

    return Watched


class ANoneAmongTheBatches(Case):
    def data(self) -> Any:
        return [*tiny_data(batches=5), None, *tiny_data(batches=4)]


class KeepsWhatAHookHasSet(Case):
    """Outputs that one hook replaces are there for all that come after it."""

    def __init__(self) -> None:
        def replace(run: hl.Run) -> None:
            run.outputs = run.outputs[:2]

        self.callbacks = (at(4, "on_train_step_end", replace),)


class FailsAfterABatchWasReplaced(Case):
    def __init__(self) -> None:
        def replace(run: hl.Run) -> None:
            run.batch = None
            raise LookupError("no rows")

        self.callbacks = (at(5, "on_train_step_start", replace),)


def raises(error: BaseException) -> Callable[[Any, hl.Run, Tensor], Any]:
    def act(task: Any, run: hl.Run, loss: Tensor) -> Any:
        raise error

    return act


def skips(task: Any, run: hl.Run, loss: Tensor) -> Any:
    run.skip_step()
    return loss


def drives(task: Any, run: hl.Run, loss: Tensor) -> None:
    run.loop.backward(loss)


def adds_a_loss(task: Any, run: hl.Run, loss: Tensor) -> Any:
    run.loop.backward(loss, weight=2)
    return sum(parameter.square().sum() for parameter in task.parameters())


class GoesOn(Case):
    """A fit that fails inside an update, then another."""

    def task(self, model: nn.Module) -> nn.Module:
        return hl.SupervisedTask(model, nn.CrossEntropyLoss(), failing(ArithmeticError("sixth"))(model.parameters()))

    def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
        with pytest.raises(ArithmeticError):
            trainer.fit(task, data, tiny_data(batches=2))
        return trainer.fit(task, data, tiny_data(batches=2))


class DataFails(Case):
    def data(self) -> Any:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield from tiny_data(batches=6)
                raise OSError("the disk is gone")

        return Stream()


class DataStops(Case):
    """A clean stop: with the last evaluation, and with all that comes at the end of an epoch."""

    batches = 8

    def data(self) -> Any:
        batches = self.batches

        class Stream:
            def __iter__(self) -> Iterator[Any]:
                yield from tiny_data(batches)
                raise hl.StopTraining("no more data")

        return Stream()


class DataStopsInAWindow(DataStops):
    batches = 9
    options: ClassVar[dict[str, Any]] = {"accumulate": 2}


class DataStopsOfATask(DataStops):
    def task(self, model: nn.Module) -> nn.Module:
        return OwnTask(model, lambda task, run, loss: loss)


class LossIsAWeight(Case):
    """A view: what is logged is what it was before the update."""

    def task(self, model: nn.Module) -> nn.Module:
        return OwnTask(model, lambda task, run, loss: loss)

    def train(self, trainer: Trainer, task: nn.Module, data: Any) -> Any:
        task.train_batch = lambda run, batch: next(task.parameters()).flatten()[0]  # type: ignore[assignment]
        return trainer.fit(task, data, tiny_data(batches=2))


def leaves(run: hl.Run) -> None:
    raise SystemExit(3)


class HookExits(Case):
    callbacks = (at(5, "on_train_step_end", leaves),)


class HookExitsAtStart(Case):
    callbacks = (at(5, "on_train_step_start", leaves),)


def with_callbacks(case: type[Case], other: type[Case]) -> type[Case]:
    class Both(case):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__()
            self.callbacks = other().callbacks

    return Both


CASES: dict[str, type[Case]] = {
    case.__name__: case
    for case in (
        Usual, WithoutMetrics, BySteps, BySamples, OneStep, WithScheduler, UnknownLength, SkipsAtStart, StopsAtEnd,
        AsksForEvaluation, EvaluatesAtEnd, AddsOneThatHears, AddsOneAtTheEnd, HookFails, HookFailsAtStart,
        ChangesTheBatch, ChangesTheBatchToThree, ReplacesTheLoss, ReplacesTheModel, ReplacesTheOptimizer,
        ReplacesTheLossBeforeTraining, SchedulerStops,
        AddsAScheduler, OwnZeroGrad, PatchedZeroGrad, Accumulates, OneInThree, Scalars,
        DropsItsFirstWindow, DropsAWindowBegunByAHook,
        ANewBatchInEachStep, SkipsEverySecond, ThreeParts, GrowsTheBatch, SkipsInTheForward,
        FailsAfterTheBatchWasHalved, FailsWithTheChangedBatch, OptimizerStops, SchedulerFails, AddsInEachStep, GoesOn,
        DataFails, DataStops, DataStopsInAWindow, DataStopsOfATask, LossIsAWeight, HookExits, HookExitsAtStart,
    )
} | {
    "Watched": watched(Case, skips=False),
    "WatchedTask": watched(task_that(lambda task, run, loss: loss), skips=False),
    "SkipsInAGradient": watched(Case, skips=True),
    "SkipsInAGradientOfATask": watched(task_that(lambda task, run, loss: loss), skips=True),
    "ANoneAmongTheBatches": ANoneAmongTheBatches,
    "KeepsWhatAHookHasSet": KeepsWhatAHookHasSet,
    "FailsAfterABatchWasReplaced": FailsAfterABatchWasReplaced,
    "ModelRaises": model_that(fails(LookupError("seventh"))),
    "ModelStops": model_that(fails(hl.StopTraining("seen enough"))),
    "ModelFailsInBackward": model_that(fails_in_backward),
    "ModelStopsInBackward": model_that(stops_in_backward),
    "ModelGivesNoGradient": model_that(lambda outputs: outputs.detach()),
    "OwnTask": task_that(lambda task, run, loss: loss),
    "OwnTaskReplacesTheOptimizer": with_callbacks(task_that(lambda task, run, loss: loss), ReplacesTheOptimizer),
    "OwnTaskAddsAScheduler": with_callbacks(task_that(lambda task, run, loss: loss), AddsAScheduler),
    "TaskRaises": task_that(raises(LookupError("seventh"))),
    "TaskStops": task_that(raises(hl.StopTraining("seen enough"))),
    "TaskSkips": task_that(skips),
    "TaskGivesWeights": task_that(lambda task, run, loss: {"loss": loss, "weight": 3.0}),
    "TaskGivesAVector": task_that(lambda task, run, loss: loss.reshape(1)),
    "TaskGivesANumber": task_that(lambda task, run, loss: loss.item()),
    "TaskGivesNoGradient": task_that(lambda task, run, loss: loss.detach()),
    "TaskGivesNothing": task_that(lambda task, run, loss: None),
    "TaskDrives": task_that(drives),
    "TaskAddsALoss": task_that(adds_a_loss),
}  # fmt: skip


@pytest.mark.parametrize(("heard", "accumulate"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_the_same_on_the_plain_and_on_the_general_way(name: str, heard: bool, accumulate: int) -> None:
    plain, general = (outcome(CASES[name], plain=way, heard=heard, accumulate=accumulate) for way in (True, False))
    for what, value in general.items():
        assert plain[what] == value, what
    assert plain["seen"]


def test_stop_training_outside_of_hooks_ends_training_as_any_stop_does() -> None:
    found = outcome(SchedulerStops, plain=True, heard=False)
    assert [what[0] for what in found["seen"] if what[0] in ("stop", "epoch", "eval")] == ["stop", "epoch", "eval"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("case", [DataStops, DataStopsInAWindow, DataStopsOfATask])
def test_stop_training_in_the_data_is_a_clean_stop(case: type[Case], plain: bool) -> None:
    found = outcome(case, plain=plain, heard=False)
    assert found["error"] is None
    assert found["result"][:2] == ("no more data", "the training loader")
    steps = 4 if case is DataStopsInAWindow else 8
    assert found["clock"][:3] == (0, steps, 8)
    assert found["seen"][-3:] == [("stop", steps, "no more data"), ("eval", steps), ("epoch", 0, steps)]
    assert found["history"][-1][:2] == ("val/loss", steps)


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_run_whose_hooks_are_timed_often_is_the_same_both_ways(
    monkeypatch: pytest.MonkeyPatch, name: str, heard: bool
) -> None:
    """One step in three instead of one in 64, which would be one or none in runs as short as these."""
    monkeypatch.setattr("hookline.events.cost.SAMPLE", 3)
    plain, general = (outcome(CASES[name], plain=way, heard=heard) for way in (True, False))
    for what, value in general.items():
        assert plain[what] == value, what


@pytest.mark.parametrize("case", [Usual, ThreeParts, task_that(lambda task, run, loss: loss)])
@pytest.mark.parametrize("heard", [False, True])
def test_most_steps_of_a_usual_run_are_plain(monkeypatch: pytest.MonkeyPatch, heard: bool, case: type[Case]) -> None:
    """Else the test above compares the general way with itself."""
    general = watch_general_steps(monkeypatch)
    outcome(case, plain=True, heard=heard)
    few = len(general)
    general.clear()
    outcome(case, plain=False, heard=heard)
    assert few < len(general) / 3, (few, len(general))


def test_a_loss_that_the_user_adds_to_in_place_is_logged_as_it_was() -> None:
    class Adds(OwnTask):
        total: Any = None

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            loss = super().train_batch(run, batch)
            losses.append(loss.item())
            if self.total is None:
                self.total = loss.detach()  # shares its memory
            else:
                self.total += loss.detach()
            return loss

    losses: list[float] = []
    task = Adds(TinyModel(), lambda task, run, loss: loss)
    trainer = Trainer(max_duration="1ep", log_every="1st", folder=False, device="cpu")
    result = trainer.fit(task, tiny_data(batches=BATCHES))
    assert result.history["train/loss"] == losses


@pytest.mark.parametrize("heard", [False, True])
def test_outputs_are_freed_before_the_next_forward(heard: bool) -> None:
    """The logits of a language model may be the largest tensor of a step: there may be no room for two of them."""
    kept: list[Any] = []
    alive: list[int] = []

    class Watches(TinyModel):
        def forward(self, x: Tensor) -> Tensor:
            alive.append(sum(ref() is not None for ref in kept))
            outputs: Tensor = super().forward(x)
            kept.append(weakref.ref(outputs))
            return outputs

    trainer = Trainer(max_duration="1ep", folder=False, device="cpu", callbacks=[SeesSteps() if heard else Seen()])
    trainer.fit(Watches(), tiny_data(batches=BATCHES), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert alive == [0] * BATCHES


@pytest.mark.parametrize("plain", [True, False])
def test_a_zero_grad_of_the_users_own_is_called_once_before_training_and_after_each_step(plain: bool) -> None:
    assert len(outcome(PatchedZeroGrad, plain=plain, heard=False)["noted"]) == 1 + 2 * BATCHES


def test_a_zero_grad_that_an_optimizer_overrides_is_called() -> None:
    rates: list[float] = []
    seen = hl.LambdaCallback(
        on_train_step_start=lambda run: rates.append(run.optimizers["Decays"].param_groups[0]["lr"])
    )
    task = OwnZeroGrad().task(TinyModel())
    Trainer(max_duration="3st", folder=False, device="cpu", callbacks=[seen]).fit(task, tiny_data(batches=BATCHES))
    assert rates == pytest.approx([0.09, 0.081, 0.0729])


def test_gradients_that_were_there_before_training_are_not_trained_on() -> None:
    """As after zero_grad: they would be added to those of the first step."""
    weights = []
    for left_behind in (None, 1.0):
        torch.manual_seed(0)
        model = TinyModel()
        for parameter in model.parameters():
            parameter.grad = None if left_behind is None else torch.full_like(parameter, left_behind)
        trainer = Trainer(max_duration="1st", folder=False, device="cpu")
        trainer.fit(model, tiny_data(batches=2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        weights.append([parameter.tolist() for parameter in model.parameters()])
        assert all(parameter.grad is None for parameter in model.parameters())
    assert weights[0] == weights[1]


PATCHED = """
import torch
calls = []
real = torch.optim.Optimizer.zero_grad
torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: (calls.append(1), real(self, set_to_none))[1]
import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

trainer = Trainer(max_duration="6st", folder=False, device="cpu")
trainer.fit(TinyModel(), tiny_data(9), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
print(len(calls))
"""


def test_a_zero_grad_that_was_replaced_for_all_optimizers_is_called() -> None:
    """Before Hookline was imported, as a tool that looks at training does it."""
    found = subprocess.run([sys.executable, "-c", PATCHED], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.split() == ["7"]


def test_a_zero_grad_of_a_package_beside_torch_is_not_torchs() -> None:
    torchs = torch.optim.Optimizer.zero_grad.__code__.co_filename
    folder = torch.__file__.removesuffix("/__init__.py")
    assert is_of_torch(torchs)
    assert not is_of_torch(f"{folder}_xla/optim.py")


@pytest.mark.parametrize("plain", [True, False])
def test_the_last_batch_of_data_without_a_length_can_be_read_at_the_edge(plain: bool) -> None:
    """Nine batches an epoch, and an interval of four: the rest ends where the data does."""
    found = outcome(UnknownLength, plain=plain, heard=False)
    assert found["error"] is None
    known = outcome(Usual, plain=plain, heard=False)
    assert [row[:4] for row in found["seen"] if row[0] == "metrics"] == [
        row[:4] for row in known["seen"] if row[0] == "metrics"
    ]


@pytest.mark.parametrize("plain", [True, False])
def test_where_the_next_batch_is_asked_for_the_last_one_is_over(plain: bool) -> None:
    seen: list[bool] = []
    fetch = hl.LambdaCallback(on_batch_fetch_start=lambda run: seen.append(hasattr(run, "batch")))
    Trainer(max_duration="2ep", folder=False, device="cpu", callbacks=[fetch]).fit(
        TinyModel(), UnknownLength().data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    assert seen == [False] * 2 * (BATCHES + 1)
    assert outcome(DataFails, plain=plain, heard=False)["seen"][-1][0] == [False] * 4
