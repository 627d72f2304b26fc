"""``DryRun``: run every stage on a few batches, then restore the model."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks.debug.limit_batches import LimitBatches
from hookline.callbacks.debug.overfit_batches import OverfitBatches
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

logger = logging.getLogger("hookline")


class DryRun(Callback):
    """Run every stage on a few batches to find errors, then restore the model.

    The run lasts one epoch. All callbacks, sinks and schedules run as usual. When the run ends, also by an error, the
    callback restores weights, buffers, layers, optimizers and ``max_duration`` and deletes the checkpoints of the dry
    run. Files that other callbacks and sinks write are not deleted.

    Args:
        batches: Number of batches for the training epoch, and for each evaluation, test and prediction.

    Raises:
        ArgumentError: If ``batches`` is below 1.
        SetupError: If the run would resume from a checkpoint, or the trainer has already trained an epoch and
            ``extend`` is not given.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> model = TinyModel()
        >>> trainer = Trainer(max_duration="100ep", callbacks=[DryRun()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> train, val, test = tiny_data(), tiny_data(seed=1), tiny_data(seed=2)
        >>> result = trainer.fit(model, train, val, test, loss=loss, optimizer=optimizer)
        >>> result.clock.step, sorted(result.metrics), torch.equal(model.out.bias, TinyModel().out.bias)
        (1, ['test/loss', 'train/loss', 'train/loss_epoch', 'val/loss'], True)
    """

    reads = ("*",)
    """The callback runs last, so that it restores the weights after the other callbacks have changed them."""
    writes = ("weights", "batch")
    after = (LimitBatches, OverfitBatches)

    def __init__(self, batches: int = 1) -> None:
        if batches < 1:
            raise ArgumentError(f"DryRun(batches={batches!r}): must be >= 1.")
        self.batches = batches
        self._clear()

    def _clear(self) -> None:
        """Drop everything that belongs to one call."""
        self._is_shortened = False
        self._max_duration: Duration | None = None
        self._modules: dict[str, torch.nn.Module] = {}
        self._weights: dict[str, torch.Tensor] = {}
        self._optimizers: list[tuple[torch.optim.Optimizer, dict[str, Any]]] = []
        self._saved: list[Path] = []

    def on_setup(self, run: Run) -> None:
        for stage in ("train", "val", "test", "predict"):
            run.limit_batches(stage, self.batches)
        if run.is_training_run:
            if run.will_resume:
                raise SetupError(
                    "DryRun starts from scratch, but this run has a checkpoint to resume from: leave out resume, "
                    "or give the dry run a separate folder"
                )
            self._is_shortened, self._max_duration = True, run.max_duration
            run.max_duration = "1ep"

    def on_fit_start(self, run: Run) -> None:
        # With `extend`, the duration is not reached yet.
        if run.max_duration is not None and run.clock.epoch and run.clock.reached(run.max_duration):
            raise SetupError(
                f"DryRun is one epoch, and this trainer has trained {run.clock.epoch}: the dry run is over; make a "
                f"new trainer without it for the real run"
            )
        self._modules = dict(run.model.named_modules(remove_duplicate=False))
        self._weights = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(run.model)}
        self._optimizers = [(optimizer, deepcopy(optimizer.state_dict())) for optimizer in run.optimizers.values()]

    def on_checkpoint_saved(self, run: Run) -> None:
        self._saved.append(run.checkpoint)

    def on_fit_end(self, run: Run) -> None:
        logger.info("the dry run went through: %d batches of each stage", self.batches)

    def on_teardown(self, run: Run) -> None:
        if self._is_shortened:
            run.max_duration = self._max_duration
        _restore_modules(self._modules)
        with torch.no_grad():
            for name, tensor in _tensors(run.model):
                # Tensors that were added during the run have no saved value.
                if name in self._weights and self._weights[name].shape == tensor.shape:
                    tensor.copy_(self._weights[name])
        for optimizer, state in self._optimizers:
            optimizer.load_state_dict(state)
        for path in self._saved:
            shutil.rmtree(path, ignore_errors=True)
            # The folder is not empty if it holds other files.
            with suppress(OSError):
                path.parent.rmdir()
        self._clear()


def _restore_modules(modules: dict[str, torch.nn.Module]) -> None:
    """Restore the modules that other callbacks have replaced."""
    for name, module in modules.items():
        path, _, last = name.rpartition(".")
        if name and modules[path]._modules.get(last) is not module:
            setattr(modules[path], last, module)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a model with their names."""
    yield from model.named_parameters()
    yield from model.named_buffers()
