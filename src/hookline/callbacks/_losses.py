"""Compute the loss of a plain model a second time, for callbacks that need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hookline.errors import SetupError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookline.run import Run

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SUPERVISED = "hookline.loop.tasks.supervised"


def check_plain(run: Run, who: str) -> None:
    """Raise unless the run trains a plain model, or a ``SupervisedTask`` that keeps ``compute_loss``, with a loss."""
    task = getattr(run, "task", None)
    if task is None:
        raise SetupError(f"{who}: a custom loop computes its loss itself. Use {who} with Trainer.fit(model, loss=…).")
    if getattr(getattr(type(task), "compute_loss", None), "__module__", "") != SUPERVISED:
        raise SetupError(
            f"{who}: {type(task).__name__} computes its loss itself. Use {who} with Trainer.fit(model, loss=…)."
        )
    if task.loss is None:
        raise SetupError(f"{who}: the model computes its loss itself. Give loss=, such as loss=nn.CrossEntropyLoss().")


def check_pair(run: Run, who: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the batch. Raise unless the batch is a pair of them."""
    batch: Any = run.batch
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, torch.Tensor) for part in batch):
        return batch[0], batch[1]
    raise SetupError(f"{who}: the batch is a {type(batch).__name__}. Let the loader give two tensors: inputs, targets.")


def autocast_of(run: Run) -> torch.autocast:
    """Return the autocast of the forward pass of this run."""
    dtype = DTYPES.get(run.precision)
    return torch.autocast(run.device.type, dtype, enabled=dtype is not None)


def loss_of(run: Run, outputs: Any, targets: Tensor) -> Tensor:
    """Return the loss of outputs and targets, as the task computes it."""
    found = run.task.loss(outputs, targets)
    return found[0] if type(found) is tuple else found  # type: ignore[no-any-return]


@contextmanager
def same_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by the batch as in training, without an update of the running statistics of batch norms."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    norms = [part for part in norms if part.training]
    for part in norms:
        part.track_running_stats = False
    try:
        yield
    finally:
        for part in norms:
            part.track_running_stats = True
