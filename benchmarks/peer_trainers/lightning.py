"""Lightning: a ``LightningModule`` and a ``Trainer`` without bar, summary, logger and checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from contenders import Problem, silence
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from measure import Batches

from peer_trainers import seconds

LOGS = "`CSVLogger` with `log_every_n_steps=1`"
SAVES = "`trainer.save_checkpoint`"

warnings.simplefilter("ignore")  # "the loader does not have many workers", and the like
silence("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda")


class Module(LightningModule):
    def __init__(self, problem: Problem, log: bool = False) -> None:
        super().__init__()
        self.model, self._optimizer = problem.make()
        self._loss, self._log = problem.loss, log

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = self._loss(self.model(x), y)
        if self._log:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", self._loss(self.model(x), y), batch_size=len(y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


def train(problem: Problem, batches: Batches) -> None:
    _trainer().fit(Module(problem), batches)


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        _trainer(logger=CSVLogger(folder), log_every_n_steps=1).fit(Module(problem, log=True), batches)


def evaluate(problem: Problem, batches: Batches) -> None:
    _trainer().validate(Module(problem), batches, verbose=False)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    trainer = _trainer()
    trainer.fit(Module(problem), batches)
    return [seconds(trainer.save_checkpoint, folder / f"{index}.ckpt") for index in range(len(batches))]


def _trainer(logger: Any = False, **options: Any) -> Trainer:
    return Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
