"""Short runs, and callbacks that end them early."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hookline as hl
from hookline.loop import Loop, Task, Trainer
from hookline.testing import TinyModel, tiny_data

CE = nn.CrossEntropyLoss()
DEFAULTS: dict[str, Any] = {"max_duration": "2ep", "folder": False, "device": "cpu", "seed": 0}


def sgd(parameters: Any, lr: float = 0.1, **more: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=lr, **more)


def fit(
    *callbacks: object,
    model: Any = None,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    trainer: Trainer | None = None,
    loss: Any = CE,
    optimizer: Any = None,
    scheduler: Any = None,
    extend: str | None = None,
    **options: Any,
) -> Any:
    """Train a ``TinyModel`` for two epochs of four steps without a folder, and return the result.

    Args:
        callbacks: The callbacks of the trainer.
        model: A model, or a task, which brings its own loss.
        train: Training batches.
        val: Validation batches.
        test: Test batches.
        trainer: A trainer to use again. By default, a new one.
        loss: The loss of a plain model.
        optimizer: The optimizer. By default, ``sgd`` for a model and its own for a task.
        scheduler: The scheduler.
        extend: See ``Trainer.fit``.
        options: Options of the trainer, such as ``max_duration``.
    """
    assert trainer is None or not (callbacks or options), "a trainer that is used again has its callbacks and options"
    trainer = trainer or Trainer(callbacks=callbacks, **{**DEFAULTS, **options})
    model = TinyModel() if model is None else model
    given: dict[str, Any] = {"optimizer": optimizer, "scheduler": scheduler, "extend": extend}
    if not isinstance(model, Task):
        given |= {"loss": loss, "optimizer": optimizer or sgd}
    return trainer.fit(model, tiny_data() if train is None else train, val, test, **given)


def train_loop(
    *callbacks: object, model: Any = None, train: Any = None, optimizer: Any = sgd, **options: Any
) -> tuple[Loop, Any]:
    """The same in a custom loop, without an evaluation: the loop, which has ended, and the model."""
    model = TinyModel() if model is None else model
    with Loop(model, optimizer, callbacks=callbacks, **{**DEFAULTS, **options}) as loop:
        for x, y in loop.batches(tiny_data() if train is None else train):
            loop.backward(CE(model(x), y))
            loop.step()
    return loop, model


def at_step(step: int, do: Callable[[Any], object], hook: str = "train_step_end") -> hl.Callback:
    """A callback that calls ``do(run)`` in this hook, once the clock shows this step."""

    def call(run: Any) -> None:
        if run.clock.step == step:
            do(run)

    return hl.LambdaCallback(name=f"at step {step}", **{f"on_{hook}": call})


def crash_at(step: int, hook: str = "train_step_end") -> hl.Callback:
    """A callback that raises ``RuntimeError("planted")``, so that the last checkpoint is not later than this step."""

    def crash(run: Any) -> None:
        raise RuntimeError("planted")

    return at_step(step, crash, hook)


def press_ctrl_c(run: Any = None) -> None:
    """Do what the terminal does when Ctrl-C is pressed."""
    signal.raise_signal(signal.SIGINT)


def literal(*names: str) -> list[str]:
    """The names in strings that are separated by white space, such as an expected sequence of events."""
    return " ".join(names).split()
