"""PyTorch-Ignite: an ``Engine`` around an update function."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contenders import Problem
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import Checkpoint, DiskSaver
from ignite.handlers.tensorboard_logger import TensorboardLogger
from ignite.metrics import Loss
from measure import Batches

from peer_trainers import seconds

LOGS = "`TensorboardLogger`, as it has no CSV logger"
SAVES = "`Checkpoint` with `DiskSaver`"


def train(problem: Problem, batches: Batches) -> None:
    _engine(problem)[0].run(batches, max_epochs=1)


def train_and_log(problem: Problem, batches: Batches) -> None:
    engine = _engine(problem)[0]
    with TemporaryDirectory() as folder, TensorboardLogger(log_dir=folder) as logger:
        logger.attach_output_handler(
            engine, Events.ITERATION_COMPLETED, tag="train", output_transform=lambda loss: {"loss": loss}
        )
        engine.run(batches, max_epochs=1)


def evaluate(problem: Problem, batches: Batches) -> None:
    model, _ = problem.make()
    create_supervised_evaluator(model, {"loss": Loss(problem.loss)}).run(batches)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    engine, model, optimizer = _engine(problem)
    state = {"trainer": engine, "model": model, "optimizer": optimizer}
    checkpoint = Checkpoint(state, DiskSaver(str(folder), require_empty=False), n_saved=None)
    found: list[float] = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: found.append(seconds(checkpoint, engine)))
    engine.run(batches, max_epochs=1)
    return found


def _engine(problem: Problem) -> Any:
    model, optimizer = problem.make()
    loss_of = problem.loss

    def update(engine: Engine, batch: Any) -> Any:
        x, y = batch
        model.train()
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Engine(update), model, optimizer
