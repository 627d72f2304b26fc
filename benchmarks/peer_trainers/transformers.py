"""Hugging Face: ``transformers.Trainer`` with a model that returns its loss; gradient clipping is off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from contenders import Problem
from measure import Batches
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

LOGS = '`report_to="tensorboard"` with `logging_steps=1`, as it has no CSV logger'
SAVES = '`save_strategy="steps"`'


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(x)
        return {"loss": self.loss(logits, labels), "logits": logits}


class Dicts:
    """The batches in the form that the ``Trainer`` takes."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.dataset, self.batch_size = batches, 32

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for x, labels in self._batches:
            yield {"x": x, "labels": labels}


class GivenBatches(Trainer):
    def get_train_dataloader(self) -> Any:
        return Dicts(self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return Dicts(self.eval_dataset)


def train(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        _trainer(problem, folder, train_dataset=batches).train()


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        _trainer(problem, folder, train_dataset=batches, report_to="tensorboard", logging_steps=1).train()


def evaluate(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        _trainer(problem, folder, eval_dataset=batches, prediction_loss_only=True).evaluate()


class Save(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = True
        self._start = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    save = Save()
    _trainer(problem, folder, callbacks=[save], train_dataset=batches).train()
    return save.seconds


def _trainer(
    problem: Problem,
    folder: Any,
    callbacks: Any = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    report_to: str = "none",
    **options: Any,
) -> Trainer:
    model, optimizer = problem.make()
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=1,
        use_cpu=True,
        max_grad_norm=0.0,
        disable_tqdm=True,
        save_strategy="no",
        report_to=report_to,
        **options,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return GivenBatches(
        WithLoss(model, problem.loss),
        arguments,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
        optimizers=(optimizer, scheduler),
    )
