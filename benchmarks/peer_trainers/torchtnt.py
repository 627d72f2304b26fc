"""TorchTNT: an ``AutoUnit``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torchtnt.framework as tnt
from contenders import Problem, silence
from measure import Batches
from torchtnt.framework.callback import Callback
from torchtnt.framework.callbacks import DistributedCheckpointSaver
from torchtnt.utils.loggers import CSVLogger

from peer_trainers import seconds

LOGS = "its `CSVLogger`, which writes the whole file again every 100 steps"
SAVES = "`DistributedCheckpointSaver`, which also waits for the disk"

silence("torchtnt")


class Unit(tnt.AutoUnit):  # type: ignore[misc]
    def __init__(self, problem: Problem, logger: Any = None) -> None:
        model, optimizer = problem.make()
        super().__init__(module=model, device=torch.device("cpu"))
        self._make_optimizer = lambda: optimizer  # as an attribute it would be saved twice
        self._loss, self._logger = problem.loss, logger
        self.losses: list[torch.Tensor] = []

    def compute_loss(self, state: Any, data: Any) -> Any:
        x, y = data
        outputs = self.module(x)
        return self._loss(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module: Any) -> Any:
        return self._make_optimizer(), None

    def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
        if self._logger:
            self._logger.log("loss", results.loss, step)

    def on_eval_step_end(self, state: Any, data: Any, step: int, loss: torch.Tensor, outputs: Any) -> None:
        self.losses.append(loss)

    def on_eval_end(self, state: Any) -> None:
        self.loss = torch.stack(self.losses).mean().item()


def train(problem: Problem, batches: Batches) -> None:
    tnt.train(Unit(problem), batches, max_epochs=1)


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        logger = CSVLogger(f"{folder}/log.csv")
        tnt.train(Unit(problem, logger), batches, max_epochs=1)
        logger.close()
        logger.close = lambda: None  # it would be called at exit, when the folder is gone


def evaluate(problem: Problem, batches: Batches) -> None:
    tnt.evaluate(Unit(problem), batches)


class Save(Callback):  # type: ignore[misc]
    def __init__(self, folder: Path) -> None:
        self._saver = DistributedCheckpointSaver(str(folder), save_every_n_train_steps=1)
        self.seconds: list[float] = []

    def on_train_start(self, state: Any, unit: Any) -> None:
        self._saver.on_train_start(state, unit)

    def on_train_step_end(self, state: Any, unit: Any) -> None:
        self.seconds.append(seconds(self._saver.on_train_step_end, state, unit))


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    save = Save(folder)
    tnt.train(Unit(problem), batches, max_epochs=1, callbacks=[save])
    return save.seconds
