"""Hookline: ``hl.Trainer`` with its defaults, except for the progress bar."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contenders import Problem
from measure import Batches

import hookline as hl

LOGS = '`sinks.CSV` with `log_every="1st"`'
SAVES = "`Checkpointer`: complete state, SHA-256, fsync"


def train(problem: Problem, batches: Batches) -> None:
    _fit(problem, batches)


def train_and_log(problem: Problem, batches: Batches) -> None:
    _fit(problem, batches, log_every="1st", sinks=[hl.sinks.CSV()])


def evaluate(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    hl.Trainer(progress=False, folder=False, device="cpu").evaluate(model, batches, loss=problem.loss)


class Save(hl.Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_step_end(self, run: Any) -> None:
        run.request_save()
        self._start = time.perf_counter()

    def on_checkpoint_saved(self, run: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    save = Save()
    _fit(problem, batches, callbacks=[save])
    return save.seconds


def _fit(problem: Problem, batches: Batches, **options: Any) -> None:
    model, optimizer = problem.make()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trainer = hl.Trainer(max_duration="1ep", progress=False, folder=f"{folder}/run", device="cpu", **options)
        trainer.fit(model, batches, loss=problem.loss, optimizer=optimizer)
