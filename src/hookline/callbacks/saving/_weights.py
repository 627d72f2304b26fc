"""Weights as one safetensors file and as a copy in CPU memory, and the best weights so far."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from hookline.callbacks._monitor import check_min_delta, monitor_mode, monitored_value, warn_if_lost
from hookline.callbacks._paths import write_parts
from hookline.checkpoint.commit import free_bytes
from hookline.checkpoint.matching import match
from hookline.checkpoint.tensor_bytes import identity
from hookline.checkpoint.tensor_file import Layout, lay_out
from hookline.distributed.dtensors import spread_like, whole
from hookline.errors import CheckpointWriteError, SetupError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's tensors in CPU memory. Tied weights stay tied."""
    copied: dict[object, Tensor] = {}
    found = {}
    for name, tensor in tensors_of(model).items():
        key = identity(tensor) or name
        if key not in copied:
            copied[key] = tensor.detach().to("cpu", copy=True)
        found[name] = copied[key]
    return found


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state dict, without other values such as a module's extra state."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def whole_weights(weights: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return the weights as full tensors. All ranks must call this function.

    Sharded tensors are gathered one after another.

    Args:
        weights: Weights by name.
        keep: False on ranks that need no result. They get an empty dict.
    """
    found = {}
    for name, tensor in weights.items():
        value = whole(tensor)
        if keep:
            found[name] = value
    return found


def load_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a model. Names and shapes must match."""
    own = tensors_of(model)
    match(own, weights, strict=True)
    placed = {name: spread_like(tensor, own[name]) for name, tensor in weights.items()}
    model.load_state_dict(placed, strict=False)  # Extra states stay unchanged.


def write_weights(path: Path, weights: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file completely or not at all.

    Args:
        path: Path of the file.
        weights: Weights by name.
        notes: Metadata of the file, which ``safe_open(…).metadata()`` returns.
    """
    layout = lay_out(weights)
    layout = _noted(layout, notes) if notes else layout
    try:
        write_parts(path, layout.parts())
    except OSError as error:
        raise CheckpointWriteError(str(path), error, needed=layout.size, free=free_bytes(path.parent)) from error


def _noted(layout: Layout, notes: Mapping[str, str]) -> Layout:
    """Return the layout with more metadata in its header."""
    header = json.loads(layout.header[8:])
    header["__metadata__"] = {**notes, **header["__metadata__"]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return Layout(head, layout.tensors, len(head) + layout.size - len(layout.header))


class BestSoFar:
    """Tracker of the best value of a metric, used by the callback ``who``.

    It decides after each evaluation, or at the end of each epoch for a ``train/…`` metric.
    """

    def __init__(self, who: str, monitor: str, mode: Literal["min", "max"] | None, min_delta: float) -> None:
        self._who, self.monitor, self.min_delta = who, monitor, check_min_delta(who, min_delta)
        self.mode = monitor_mode(who, monitor, mode)
        self.value: float | None = None
        self.step = 0
        self.weights: dict[str, Tensor] | None = None
        """Copy of the weights in CPU memory."""
        self._epoch = 0
        self._warned = False

    def update_after_eval(self, run: Run) -> bool:
        """Update the best value in ``on_eval_end``. Return whether the weights are the best."""
        wanted = run.stage == "val" and run.is_training_run and not self.monitor.startswith("train/")
        return wanted and self._update(run)

    def update_after_epoch(self, run: Run) -> bool:
        """Update the best value in ``on_epoch_end``. Return whether the weights are the best."""
        if not self.monitor.startswith("train/") or run.clock.epoch <= self._epoch:  # The epoch is incomplete.
            return False
        self._epoch = run.clock.epoch
        return self._update(run)

    def _update(self, run: Run) -> bool:
        """Compare the newest value with the best one, and copy the weights if it is better."""
        if warn_if_lost(run, self):
            return False
        value = monitored_value(run, self._who, self.monitor)
        if value is None or not math.isfinite(value) or not self._is_better(value):
            return False
        self.value, self.step, self.weights = value, run.clock.step, copy_of(run.model)
        if not run.rank:
            logger.info("the best %s so far: %.6g at step %d", self.monitor, value, self.step)
        return True

    def _is_better(self, value: float) -> bool:
        """True if the value is better than the best one by more than ``min_delta``."""
        if self.value is None:
            return True
        return value < self.value - self.min_delta if self.mode == "min" else value > self.value + self.min_delta

    def to_use(self, run: Run) -> dict[str, Tensor] | None:
        """Return the best weights with the current constraints of other callbacks.

        Such a constraint is the set of zeros of ``Pruning``.
        """
        holds = [hold for callback in run.callbacks if (hold := getattr(callback, "constrain_weights", None))]
        if self.weights is None or not holds:
            return self.weights
        copied = {id(tensor): tensor.clone() for tensor in self.weights.values()}  # Tied weights stay tied.
        found = {name: copied[id(tensor)] for name, tensor in self.weights.items()}
        for hold in holds:
            hold(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.value, "best_step": self.step, "best_weights": self.weights, "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value, self.step, self.weights = state["best"], state["best_step"], state["best_weights"]
        self._epoch = state["epoch"]


def check_whole(run: Run, who: str) -> None:
    """Raise in ``on_setup`` if the strategy shards the model."""
    if run.is_sharded:
        raise SetupError(
            f"{who} needs the whole model on one rank, and the strategy of this run gives each rank a part of it: "
            f"save with Checkpointer, and take the weights out with 'hookline checkpoints consolidate'"
        )
