"""``DryRun``: everything once, quickly, and then as if it had not been."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

logger = logging.getLogger("hookline")


class DryRun(Callback):
    """One epoch of ``batches`` batches, and as many for each evaluation, test and prediction.

    **What it does.** Everything that the run would do, once: all callbacks, sinks and schedules run, the model is
    evaluated and tested, checkpoints are written, read by nobody and deleted again when the run ends. So a typing
    error in the part after the last epoch, a full disk or a metric that nobody logs is found in seconds.

    **What it leaves.** Weights, buffers, layers and the optimizers are put back as they were when training began, on
    every way out. What was done before that stays: weights that ``LoadWeights`` has read, and the layers with rounding
    of a ``QuantizationAwareTraining``. What callbacks and sinks have written stays where it is: a run that is to keep
    its folder clean gets a ``folder`` of its own for the dry run. ``max_duration`` is as before when the run has ended.

    **What it does not do.** It does not go on: a ``resume`` that has something to go on from is refused, and a further
    fit of a trainer that has trained an epoch, too (unless ``extend`` asks for another). It does not find what comes
    late, such as memory that runs out or a loss that diverges. With ``accumulate`` a step is made of fewer batches than
    usual, if there are no more.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> model = TinyModel()
    >>> trainer = Trainer(max_duration="100ep", callbacks=[DryRun()], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(model, tiny_data(), tiny_data(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> result.clock.step, sorted(result.metrics), torch.equal(model.out.bias, TinyModel().out.bias)
    (1, ['test/loss', 'train/loss', 'train/loss_epoch', 'val/loss'], True)
    """

    reads = ("*",)
    """Last: what the others have done to the weights at the end is done before they are put back."""
    writes = ("weights", "batch")

    def __init__(self, batches: int = 1) -> None:
        if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
            raise RegistrationError(f"DryRun({batches!r}): give a number of batches, 1 or more")
        self.batches = batches
        self._forget()

    def _forget(self) -> None:
        self._is_shortened = False
        self._max_duration: Duration | None = None
        self._modules: dict[str, torch.nn.Module] = {}
        self._weights: dict[str, torch.Tensor] = {}
        self._optimizers: list[tuple[torch.optim.Optimizer, dict[str, Any]]] = []
        self._saved: list[Path] = []

    def on_setup(self, run: Run) -> None:
        self._forget()
        for stage in ("train", "val", "test", "predict"):
            run.limit_batches(stage, self.batches)
        if run.is_training_run:
            if run.will_resume:
                raise SetupError(
                    "DryRun begins anew, and this run has a checkpoint to go on from: leave out resume, "
                    "or give the dry run a folder of its own"
                )
            self._is_shortened, self._max_duration = True, run.max_duration
            run.max_duration = "1ep"

    def on_fit_start(self, run: Run) -> None:
        if run.max_duration is not None and run.clock.epoch and run.clock.reached(run.max_duration):  # not extended
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
        _put_back(self._modules)
        with torch.no_grad():
            for name, tensor in _tensors(run.model):
                if name in self._weights and self._weights[name].shape == tensor.shape:  # not what was added since
                    tensor.copy_(self._weights[name])
        for optimizer, state in self._optimizers:
            optimizer.load_state_dict(state)
        for path in self._saved:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):  # others have something in it
                path.parent.rmdir()
        self._forget()


def _put_back(modules: dict[str, torch.nn.Module]) -> None:
    """The parts that others have replaced by now."""
    for name, module in modules.items():
        path, _, last = name.rpartition(".")
        if name and modules[path]._modules.get(last) is not module:
            setattr(modules[path], last, module)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
