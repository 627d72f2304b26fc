"""fastai: a ``Learner`` with its default callbacks, the progress bar and the printed table off."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from contenders import Problem
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from measure import Batches

from peer_trainers import Loader, seconds

LOGS = "a callback that writes CSV rows by hand, as `CSVLogger` writes epochs only"
SAVES = "`learn.save`: weights and optimizer"


def train(problem: Problem, batches: Batches) -> None:
    _fit(problem, batches)


class Rows(Callback):  # type: ignore[misc]
    def __init__(self, file: Any) -> None:
        self._writer = csv.writer(file)

    def after_batch(self) -> None:
        self._writer.writerow([self.train_iter, self.loss.item()])


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder, Path(folder, "log.csv").open("w") as file:
        _fit(problem, batches, cbs=[Rows(file)])


def evaluate(problem: Problem, batches: Batches) -> None:
    learn = _learner(problem, batches)
    with learn.no_logging():
        learn.validate(dl=Loader(batches))


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    learn = _fit(problem, batches, path=folder)
    return [seconds(learn.save, f"{index}") for index in range(len(batches))]


def _fit(problem: Problem, batches: Batches, **options: Any) -> Any:
    learn = _learner(problem, batches, **options)
    with learn.no_logging():
        learn.fit(1)
    return learn


def _learner(problem: Problem, batches: Batches, **options: Any) -> Any:
    model, optimizer = problem.make()
    loaders = DataLoaders(Loader(batches), Loader(batches[:1]), device=torch.device("cpu"))
    learn = Learner(
        loaders,
        model,
        problem.loss,
        opt_func=partial(OptimWrapper, opt=type(optimizer)),
        lr=optimizer.param_groups[0]["lr"],
        **options,
    )
    return learn.remove_cb(ProgressCallback)
