"""The same training by a bare loop, Hookline, ignite and Lightning; on a real model and on one that does nothing."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from measure import Batches, Contender
from torch import Tensor, nn

import hookline as hl
from hookline.loop import Trainer  # without the progress bar

CALLBACKS = 10
EMPTY_CALLBACKS = 30


@dataclass(frozen=True, slots=True)
class Problem:
    """What is trained."""

    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]
    loss: Callable[[Any, Any], Any]
    batches: Sequence[tuple[Tensor, Tensor]]
    null: bool = False


# -- what is trained -----------------------------------------------------------------------------


def mlp() -> Problem:
    """A 32-64-10 MLP with SGD on batches of 32: so small that a step is nearly all overhead."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(32, 32, generator=generator), torch.randint(10, (32,), generator=generator)) for _ in range(16)
    ]
    return Problem(make, nn.CrossEntropyLoss(), batches)


def wide_mlp() -> Problem:
    """A 256-1024-1024-10 MLP with Adam on batches of 32: a step takes some milliseconds."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
        model = nn.Sequential(*layers)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(32, 256, generator=generator), torch.randint(10, (32,), generator=generator)) for _ in range(16)
    ]
    return Problem(make, nn.CrossEntropyLoss(), batches)


class NullModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))  # every library refuses a model without parameters

    def forward(self, x: Tensor) -> Tensor:
        return x


class NullOptimizer(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:  # Lightning's way
            closure()

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it, for its profiler

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


class NullLoss(Tensor):
    """A real tensor, so that metrics can read it, whose backward does nothing."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def backward(self, *args: Any, **kwargs: Any) -> None:
        pass


def null() -> Problem:
    """Nothing is computed, so what is left is the Python of the loop itself, without torch's noise."""
    value = Tensor._make_subclass(NullLoss, torch.tensor(0.5), True)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = NullModel()
        return model, NullOptimizer(model.parameters())

    return Problem(make, lambda outputs, targets: value, [(torch.zeros(32, 1), torch.zeros(32))], null=True)


# -- who trains it -------------------------------------------------------------------------------


def contenders(problem: Problem) -> tuple[Contender, dict[str, Contender | None]]:
    """The bare loop, and the rows of the table; ``None`` for a library that is not installed."""
    bare = partial(_bare, problem)
    off = partial(_hookline, problem, log_every=None)
    rows: dict[str, Contender | None] = {
        "bare loop": bare,
        "bare loop, gradients set to None": partial(_bare_without_zero_grad, problem),
        "Hookline, metrics off": off,
        "Hookline, metrics on": partial(_hookline, problem),
        "Hookline, on, 10 callbacks": partial(_hookline, problem, callbacks=_hearing),
        "Hookline, on, 30 empty callbacks": partial(_hookline, problem, callbacks=_empty),
        "Hookline, own Loop, off": partial(_own_loop, problem),
        "ignite": None,
        "ignite, 10 callbacks": None,
        "Lightning": None,
        "Lightning, 10 callbacks": None,
    }
    if find_spec("ignite"):
        rows |= {
            "ignite": partial(_ignite, problem, 0),
            "ignite, 10 callbacks": partial(_ignite, problem, CALLBACKS),
        }
    if find_spec("lightning"):
        rows |= {
            "Lightning": partial(_lightning, problem, 0),
            "Lightning, 10 callbacks": partial(_lightning, problem, CALLBACKS),
        }
    return bare, rows


def bare_step(problem: Problem) -> Callable[[Any], None]:
    """One step of the bare loop, of a model of its own."""
    model, optimizer = problem.make()
    loss_of = problem.loss

    def step(batch: Any) -> None:
        x, y = batch
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def _bare(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    loss_of = problem.loss
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()


def _bare_without_zero_grad(problem: Problem, batches: Batches) -> None:
    """As Hookline clears them: ``zero_grad`` does the same, and some things for torch's profiler and compiler."""
    model, optimizer = problem.make()
    parameters = list(model.parameters())
    loss_of = problem.loss
    for x, y in batches:
        for parameter in parameters:
            parameter.grad = None
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()


class Hearing(hl.Callback):
    def on_train_step_start(self, run: hl.Run) -> None:
        pass

    def on_train_step_end(self, run: hl.Run) -> None:
        pass


class Empty(hl.Callback):
    pass


def _hearing() -> list[hl.Callback]:
    return _named([Hearing() for _ in range(CALLBACKS)])


def _empty() -> list[hl.Callback]:
    return _named([Empty() for _ in range(EMPTY_CALLBACKS)])


def _named(callbacks: list[Any]) -> list[hl.Callback]:
    """Hookline refuses callbacks that it could not tell apart in a checkpoint."""
    for index, callback in enumerate(callbacks):
        callback.name = str(index)
    return callbacks


def _hookline(
    problem: Problem,
    batches: Batches,
    *,
    log_every: str | None = "100st",
    callbacks: Callable[[], Sequence[hl.Callback]] = tuple,
) -> None:
    """With metrics on, as a user has them: with history, and with the rows written to the run's folder."""
    model, optimizer = problem.make()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            preflight=False,
            max_duration="1ep",
            log_every=log_every,
            folder=False if log_every is None else folder,
            device="cpu",
            callbacks=callbacks(),
        )
        trainer.fit(model, batches, loss=problem.loss, optimizer=optimizer)


def _own_loop(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    loss_of = problem.loss
    with hl.Loop(
        model, optimizer, max_duration="1ep", log_every=None, folder=False, device="cpu", preflight=False
    ) as loop:
        for x, y in loop.batches(batches):
            loop.backward(loss_of(model(x), y))
            loop.step()


def _ignite(problem: Problem, callbacks: int, batches: Batches) -> None:
    from ignite.engine import Engine, Events

    model, optimizer = problem.make()
    loss_of = problem.loss

    def update(engine: Engine, batch: Any) -> Any:
        x, y = batch
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    engine = Engine(update)
    for _ in range(callbacks):
        engine.add_event_handler(Events.ITERATION_STARTED, lambda engine: None)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: None)
    engine.run(batches, max_epochs=1)


def _lightning(problem: Problem, callbacks: int, batches: Batches) -> None:
    # It takes seconds to import, and its rows may not be asked for.
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self._optimizer = problem.make()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return problem.loss(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

        if problem.null:

            def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
                pass  # Lightning divides the loss, and what comes out has a real backward

    class Hearing(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            pass

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the loader does not have many workers", and the like
        silence("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda")
        trainer = Trainer(
            preflight=False,
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            callbacks=[Hearing() for _ in range(callbacks)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), batches)


def silence(*names: str) -> None:
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
