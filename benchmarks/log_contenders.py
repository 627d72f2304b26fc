"""The same training with everything logged: by a bare loop that logs nothing, by Hookline and by Lightning."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from contenders import Problem, contenders, silence
from measure import Batches, Contender
from torch import Tensor

import hookline as hl
from hookline import loop

BARE, COMPUTING = "bare loop", "bare loop that computes five values"
HUNDRED, FIFTY = "Hookline, every 100 steps", "Hookline, every 50 steps"
TERMINAL, DEFAULTS = "Hookline, 100, in a terminal", "Hookline, 100, defaults of hl.Trainer"
COMPUTED = "Hookline, 100, computes five values"
LIGHTNING = "Lightning, every 100 steps"
EVERY = {HUNDRED: 100, FIFTY: 50, TERMINAL: 100, DEFAULTS: 100, COMPUTED: 100, LIGHTNING: 100}
"""The steps of an interval."""

Values = Callable[[Tensor], Sequence[Tensor]]
"""Five, which are logged in every step."""


def at_hand(loss: Tensor) -> Sequence[Tensor]:
    """What a bare loop has, too: so all that is added is what it costs to log."""
    return loss, loss, loss, loss, loss


def computed(loss: Tensor) -> Sequence[Tensor]:
    """Five small operations, which take longer than to log them."""
    value = loss.detach()
    return value * 2, value * 3, value + 1, value - 1, value.exp()


def log_contenders(problem: Problem) -> dict[str, Contender | None]:
    """The rows of the table; ``None`` for a library that is not installed."""
    rows: dict[str, Contender | None] = {
        BARE: contenders(problem)[0],
        HUNDRED: partial(_hookline, problem, log_every="100st"),
        FIFTY: partial(_hookline, problem, log_every="50st"),
        TERMINAL: partial(_hookline, problem, log_every="100st", style="rich", output=a_terminal),
        DEFAULTS: partial(_hookline, problem, log_every="100st", make=hl.Trainer),
        LIGHTNING: None,
        COMPUTING: partial(_bare_computing, problem),
        COMPUTED: partial(_hookline, problem, log_every="100st", values=computed),
    }
    if find_spec("lightning"):
        rows[LIGHTNING] = partial(_lightning, problem)
    return rows


# -- the bare loop -------------------------------------------------------------------------------------


def _bare_computing(problem: Problem, batches: Batches) -> None:
    model, optimizer = problem.make()
    loss_of = problem.loss
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        computed(loss)
        loss.backward()
        optimizer.step()


# -- Hookline ------------------------------------------------------------------------------------------


class Logging(hl.Task[Any]):
    """Logs five metrics in every step."""

    def __init__(self, problem: Problem, values: Values = at_hand) -> None:
        super().__init__()
        self.model, self._optimizer = problem.make()
        self.loss_of, self.values = problem.loss, values

    def configure_optimizers(self, run: hl.Run) -> torch.optim.Optimizer:
        return self._optimizer

    def train_batch(self, run: hl.Run, batch: Any) -> Tensor:
        x, y = batch
        loss: Tensor = self.loss_of(self.model(x), y)
        first, second, third, fourth, fifth = self.values(loss)
        run.log({"first": first, "second": second, "third": third, "fourth": fourth, "fifth": fifth})
        return loss


@contextmanager
def a_log() -> Iterator[None]:
    """All output goes to a file that is no terminal."""
    with open(os.devnull, "w", encoding="utf-8") as stream, redirect_stdout(stream), redirect_stderr(stream):
        yield


@contextmanager
def a_terminal() -> Iterator[None]:
    """Standard output is a terminal, which a process of its own reads."""
    ours, theirs = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    try:
        with (
            open(theirs, "w", encoding="utf-8") as stream,
            redirect_stdout(stream),
            patch.dict(os.environ, TERM="xterm-256color"),
        ):
            yield
    finally:
        reader.wait()  # it ends when nobody has the terminal open any more


def _hookline(
    problem: Problem,
    batches: Batches,
    *,
    log_every: str,
    style: Any = "plain",
    output: Callable[[], AbstractContextManager[None]] = a_log,
    make: type[loop.Trainer] = loop.Trainer,
    values: Values = at_hand,
) -> None:
    """The bar, ``metrics.jsonl``, TensorBoard, learning rates and speed."""
    with tempfile.TemporaryDirectory() as folder, output():
        trainer = make(
            max_duration="1ep",
            log_every=log_every,
            folder=folder,
            device="cpu",
            sinks=[hl.sinks.TensorBoard()],
            callbacks=[hl.LRMonitor(), hl.SpeedMonitor(), hl.ProgressBar(style=style)],
        )
        trainer.fit(Logging(problem, values), batches)


def in_a_terminal(problem: Problem, batches: Batches, display: Any) -> None:
    """As the row of the terminal, with a display of one's own."""
    _hookline(problem, batches, log_every="100st", style=display, output=a_terminal)


# -- Lightning -----------------------------------------------------------------------------------------


def _lightning(problem: Problem, batches: Batches) -> None:
    """Its bar with one of the metrics (ours has them all), its loggers for CSV and TensorBoard, learning rates."""
    # It takes seconds to import, and its rows may not be asked for.
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self._optimizer = problem.make()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = problem.loss(self.model(x), y)
            self.log("first", loss, prog_bar=True)
            self.log("second", loss)
            self.log("third", loss)
            self.log("fourth", loss)
            self.log("fifth", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    with tempfile.TemporaryDirectory() as folder, a_log(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the loader does not have many workers", and the like
        silence("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda")
        trainer = Trainer(
            preflight=False,
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=[CSVLogger(folder), TensorBoardLogger(folder)],
            log_every_n_steps=EVERY[LIGHTNING],
            callbacks=[LearningRateMonitor()],
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), batches)
