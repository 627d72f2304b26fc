"""The callbacks that ``hookline replay`` adds to the script that it replays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks import ActivationMonitor, GradientMonitor
from hookline.callbacks._trees import tensors
from hookline.distributed.dtensors import whole
from hookline.events import Callback
from hookline.loop.saving.replay import named_callback
from hookline.records.steps import FILE, ROW_BYTES
from hookline.replaying.found import FOUND, STARTED

if TYPE_CHECKING:
    from hookline.run import Run

OUTLIER = 10.0
"""How many times the median of a batch a value of a sample must be to stand out."""


class ReplayStart(Callback):
    """Write where the replay starts, and add callbacks to the run when the steps that were asked for begin.

    Args:
        start: The step after which these steps begin.
        callbacks: The callbacks to add, such as ``"watch:Watch(every=2)"``.
    """

    def __init__(self, start: int, callbacks: Sequence[str]) -> None:
        self._start, self._to_add = start, [named_callback(name) for name in callbacks]

    def on_fit_start(self, run: Run) -> None:
        if run.folder is not None and not run.rank:
            file = run.folder / FILE
            rows = file.stat().st_size // ROW_BYTES if file.exists() else 0
            (run.folder / STARTED).write_text(json.dumps({"step": run.clock.step, "rows": rows}))
        self._add(run)

    def on_train_step_end(self, run: Run) -> None:
        self._add(run)

    def _add(self, run: Run) -> None:
        while self._to_add and run.clock.step >= self._start:
            run.callbacks.add(self._to_add.pop(0))


class BadStep(Callback):
    """Find the module and the samples that make a step bad.

    It looks at the outputs of all modules, at the losses and at the gradients of each step. It reads these values from
    the device, so it is slow.

    Args:
        at: The step whose samples are wanted, also if all its values are finite.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._step = 0
        self._row: dict[str, Any] | None = None
        self._rows: list[dict[str, Any]] = []
        self._bad_outputs: list[bool] | None = None  # The samples of the first output that is not finite.
        self._detach: list[Callable[[], None]] = []

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        there = {type(callback) for callback in run.callbacks}
        for monitor in (ActivationMonitor("1st", statistics=("norm", "max", "zeros")), GradientMonitor("1st")):
            if type(monitor) not in there:  # They log the values of every step for the report.
                run.callbacks.add(monitor)

    def on_train_step_start(self, run: Run) -> None:
        self._end_step()
        self._step = run.clock.step + 1
        self._row = {"step": self._step, "epoch": run.clock.epoch, "activations": {}, "gradients": {}, "batches": []}
        for name, part in run.model.named_modules():
            if part._compiled_call_impl is None and not hasattr(part, "_orig_mod"):
                self._detach.append(part.register_forward_hook(self._look(name or "model", run)).remove)

    def on_train_batch_start(self, run: Run) -> None:
        self._bad_outputs = None

    def on_loss_ready(self, run: Run) -> None:
        if self._row is not None and not run.is_padding:
            loss = float(run.loss.detach())
            found: dict[str, Any] = {"loss": loss, "is_bad": self._bad_outputs is not None}
            if not math.isfinite(loss) or self._step == self._at or self._bad_outputs is not None:
                found |= self._samples(run)
            self._row["batches"].append(found)

    def on_gradients_ready(self, run: Run) -> None:
        if self._row is not None:
            self._row["gradients"] |= _gradients(run.model)

    def on_train_step_end(self, run: Run) -> None:
        self._end_step()

    def on_step_skipped(self, run: Run) -> None:
        self._end_step()

    def on_teardown(self, run: Run) -> None:
        self._end_step()
        if run.folder is not None:
            (run.folder / FOUND.format(rank=run.rank)).write_text(json.dumps(self._rows))

    def _end_step(self) -> None:
        while self._detach:
            self._detach.pop()()
        if self._row is not None and self._row["batches"]:
            self._rows.append(self._row)
        self._row = None

    # -- what ----------------------------------------------------------------------------------

    def _look(self, name: str, run: Run) -> Callable[..., None]:
        """Return the forward hook of a module, which notes the largest magnitude of its outputs."""

        def look(module: nn.Module, args: Any, output: Any) -> None:
            if self._row is None or run.stage != "train" or run.is_padding:
                return
            label = f"{name} ({type(module).__name__})"
            for tensor in tensors(output):
                if tensor.is_floating_point() and tensor.numel() and tensor.layout == torch.strided:
                    largest = _largest(tensor)
                    known = self._row["activations"].get(label)
                    self._row["activations"][label] = largest if known is None else _worse(known, largest)
                    if not math.isfinite(largest) and self._bad_outputs is None:
                        self._bad_outputs = _not_finite_rows(tensor, run.batch_size)

        return look

    def _samples(self, run: Run) -> dict[str, Any]:
        """Return the samples of the batch, and those of them that stand out."""
        batch, size = run.batches_read - 1, run.batch_size
        positions, why = self._suspects(run, size)
        return {
            "batch": batch,
            "size": size,
            "indices": run.sample_indices(batch),
            "positions": positions,
            "why": why,
        }

    def _suspects(self, run: Run, size: int) -> tuple[list[int], str]:
        """Return the positions in the batch of the samples that stand out, and how they do."""
        inputs = [tensor for tensor in tensors(run.batch) if tensor.is_floating_point() and len(tensor.shape) > 0]
        inputs = [tensor for tensor in inputs if tensor.shape[0] == size]
        for tensor in inputs:
            if found := _some(_not_finite_rows(tensor, size)):
                return found, "has values that are not finite"
        if found := _some(self._bad_outputs):
            return found, "has outputs that are not finite"
        losses = _losses_of_samples(run, size)
        if found := _some([not math.isfinite(loss) for loss in losses]):
            return found, "has a loss that is not finite"
        for tensor in inputs:
            if found := _outliers(tensor.detach().float().abs().flatten(1).amax(1).tolist() if tensor.ndim > 1 else []):
                return found, f"has values more than {OUTLIER:g} times as large as usual in this batch"
        if found := _outliers(losses):
            return found, f"has a loss more than {OUTLIER:g} times as large as usual in this batch"
        return [], ""


def _largest(tensor: Tensor) -> float:
    """Return the largest magnitude. NaN if a value is NaN."""
    return float(tensor.detach().abs().amax())


def _worse(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _not_finite_rows(tensor: Tensor, size: int) -> list[bool] | None:
    """Return for each sample whether it has a value that is not finite. ``None`` without a dimension of samples."""
    if not tensor.ndim or tensor.shape[0] != size:
        return None
    found: list[bool] = (~tensor.detach().isfinite()).reshape(size, -1).any(1).tolist()
    return found


def _some(rows: Sequence[bool] | None) -> list[int]:
    """Return the positions that are true, unless all are."""
    found = [position for position, is_so in enumerate(rows or ()) if is_so]
    return found if len(found) < len(rows or ()) or len(found) == 1 else []


def _outliers(values: Sequence[float]) -> list[int]:
    """Return the positions of values far above the median."""
    usual = sorted(values)[len(values) // 2] if values else 0.0
    return _some([value > OUTLIER * usual for value in values]) if usual > 0 else []


def _losses_of_samples(run: Run, size: int) -> list[float]:
    """Return the loss of each sample, with the loss function of the task. Empty if it cannot be computed."""
    loss, batch = getattr(run.task, "loss", None), run.batch
    if not callable(loss) or not isinstance(batch, list | tuple) or len(batch) < 2:
        return []
    outputs, targets = run.outputs, batch[-1]
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and len(outputs) == len(targets) == size):
        return []
    with torch.no_grad():
        found = [loss(outputs[place : place + 1].detach(), targets[place : place + 1]) for place in range(size)]
    return [float(value) for value in found] if all(isinstance(value, Tensor) for value in found) else []


def _gradients(model: nn.Module) -> dict[str, float]:
    """Return the largest magnitude of the gradients of each module, in the order of the backward pass."""
    found: dict[str, float] = {}
    for name, part in reversed(list(model.named_modules())):
        values = [
            _largest(whole(p.grad)) for p in part.parameters(recurse=False) if p.grad is not None and p.grad.numel()
        ]
        if values:
            found[f"{name or 'model'} ({type(part).__name__})"] = (
                math.nan if any(map(math.isnan, values)) else max(values)
            )
    return found
