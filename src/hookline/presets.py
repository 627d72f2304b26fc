"""What most people want: the trainer with its default callbacks, and the functions.

The only module that knows loop, callbacks and sinks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from hookline import loop
from hookline.callbacks.watch import LogFile, ModelSummary, ProgressBar
from hookline.loop import Result
from hookline.loop.settings import Options
from hookline.progress import Duration
from hookline.records import Value


class Trainer(loop.Trainer):
    """``hookline.loop.Trainer`` with a progress bar, a summary of the model, ``log.txt`` and ``report.html``.

    Pass a ``ProgressBar``, ``ModelSummary`` or ``LogFile`` of your own to change it.

    >>> import torch
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="2ep", callbacks=[ProgressBar(style=None)], folder=False)
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    >>> result.clock.epoch
    2
    """

    def default_callbacks(self, given: list[object]) -> list[object]:
        defaults = (ProgressBar(), ModelSummary(depth=1, flops=False, print=False), LogFile())
        return [default for default in defaults if not any(isinstance(callback, type(default)) for callback in given)]

    def when_written(self, folder: Path) -> None:
        from hookline.report.page import write_report  # only the end of a run needs it

        write_report(folder)


def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    callbacks: Iterable[object] = (),
    extend: str | Duration | None = None,
    **options: Unpack[Options],
) -> Result:
    """``Trainer(callbacks=…, **options).fit(…)``: train, evaluate on ``val`` as it goes, on ``test`` at the end."""
    trainer = Trainer(callbacks=callbacks, **options)
    return trainer._fit("fit", model, train, val, test, loss, optimizer, scheduler, (), extend)


def train(
    model: nn.Module,
    train: Any,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    callbacks: Iterable[object] = (),
    extend: str | Duration | None = None,
    **options: Unpack[Options],
) -> Result:
    """``fit`` without any evaluation."""
    trainer = Trainer(callbacks=callbacks, **options)
    return trainer._fit("train", model, train, None, None, loss, optimizer, scheduler, (), extend)


def evaluate(
    model: nn.Module,
    val: Any,
    *,
    loss: Callable[..., Any] | None = None,
    callbacks: Iterable[object] = (),
    **options: Unpack[Options],
) -> dict[str, Value]:
    """The metrics of one evaluation, named ``val/…``."""
    return Trainer(callbacks=callbacks, **options).evaluate(model, val, loss=loss)


def test(
    model: nn.Module,
    test: Any,
    *,
    loss: Callable[..., Any] | None = None,
    callbacks: Iterable[object] = (),
    **options: Unpack[Options],
) -> dict[str, Value]:
    """The metrics of one evaluation, named ``test/…``."""
    return Trainer(callbacks=callbacks, **options).test(model, test, loss=loss)


def predict(model: nn.Module, loader: Any, *, callbacks: Iterable[object] = (), **options: Unpack[Options]) -> Any:
    """Predictions in the loader's order."""
    return Trainer(callbacks=callbacks, **options).predict(model, loader)
