"""Composer: a ``ComposerClassifier`` and a ``Trainer`` without bars."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from composer import Trainer
from composer.loggers import FileLogger
from composer.metrics import CrossEntropy
from composer.models import ComposerClassifier
from contenders import Problem
from measure import Batches
from torchmetrics import MetricCollection

from peer_trainers import Loader, seconds

LOGS = "`FileLogger`: its own text file, with its values of throughput off"
SAVES = "`trainer.save_checkpoint`"

warnings.simplefilter("ignore")


def train(problem: Problem, batches: Batches) -> None:
    _run(problem, train_dataloader=Loader(batches))


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        logger = FileLogger(f"{folder}/log.txt", capture_stdout=False, capture_stderr=False, log_traces=False)
        _run(problem, train_dataloader=Loader(batches), loggers=[logger])


def evaluate(problem: Problem, batches: Batches) -> None:
    trainer = _trainer(problem)
    trainer.eval(Loader(batches))
    trainer.close()


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    trainer = _trainer(problem, train_dataloader=Loader(batches))
    trainer.fit()
    found = [seconds(trainer.save_checkpoint, str(folder / f"{index}.pt")) for index in range(len(batches))]
    trainer.close()
    return found


def _run(problem: Problem, **options: Any) -> None:
    trainer = _trainer(problem, **options)
    trainer.fit()
    trainer.close()


def _trainer(problem: Problem, **options: Any) -> Trainer:
    module, optimizer = problem.make()
    loss = problem.loss
    metrics = CrossEntropy()
    model = ComposerClassifier(
        module,
        train_metrics=MetricCollection([]),
        val_metrics=metrics,
        loss_fn=lambda outputs, targets: loss(outputs, targets),
    )
    return Trainer(
        model=model,
        optimizers=optimizer,
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
        log_to_console=False,
        auto_log_hparams=False,
        **options,
    )
