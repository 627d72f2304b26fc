"""pytorch-accelerated: a ``Trainer`` with its default callbacks, except for the bars and the printed metrics."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from contenders import Problem
from measure import Batches
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import MoveModulesToDeviceCallback, TerminateOnNaNCallback, TrainerCallback

from peer_trainers import seconds

LOGS = "a callback that writes CSV rows by hand, as its history has epochs only"
SAVES = "`save_training_state`"


class Given:
    """The batches in the form that the ``Trainer`` takes. It does not wrap them in a loader of accelerate's."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.batch_sampler = SimpleNamespace(even_batches=True)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class GivenBatches(Trainer):  # type: ignore[misc]
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: Any = None) -> Any:
        self._train_dl_kwargs = {"batch_size": 32}
        return Given(self.train_dataset)

    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: Any = None) -> Any:
        self._eval_dl_kwargs = {"batch_size": 32}
        return Given(self.eval_dataset)


class Rows(TrainerCallback):  # type: ignore[misc]
    def __init__(self, file: Any) -> None:
        self._writer, self._step = csv.writer(file), 0

    def on_train_step_end(self, trainer: Any, batch_output: Any, **kwargs: Any) -> None:
        self._writer.writerow([self._step, batch_output["loss"].item()])
        self._step += 1


def train(problem: Problem, batches: Batches) -> None:
    _trainer(problem).train(batches, num_epochs=1)


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder, Path(folder, "log.csv").open("w") as file:
        _trainer(problem, Rows(file)).train(batches, num_epochs=1)


def evaluate(problem: Problem, batches: Batches) -> None:
    _trainer(problem).evaluate(batches)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    trainer = _trainer(problem)
    trainer.train(batches, num_epochs=1)
    return [seconds(trainer.save_training_state, str(folder / str(index))) for index in range(len(batches))]


def _trainer(problem: Problem, *callbacks: Any) -> Trainer:
    model, optimizer = problem.make()
    default = (MoveModulesToDeviceCallback, TerminateOnNaNCallback)
    return GivenBatches(model, problem.loss, optimizer, callbacks=(*default, *callbacks))
