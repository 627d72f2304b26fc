"""The content of one checkpoint: weights, other state, and metadata for the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of a checkpoint, a part of ``manifest.json``."""

    step: int
    epoch: int
    batch: int
    sample: int
    seconds: float
    run: str
    """Identifier of the run that wrote the checkpoint."""
    generation: int = 0
    """Increased by a rollback and by a resume from an older checkpoint.

    The latest checkpoint has the highest (generation, step).
    """
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Latest value of each scalar metric, to find the best checkpoint."""
    exact: bool = True
    """False after an error inside a step. ``resume="auto"`` skips such a checkpoint."""
    pending_eval: bool = False
    """True if a signal interrupted an evaluation. The resumed run starts with that evaluation."""
    finished: bool = False
    """True if training was complete."""
    passes: float = 0.0
    """Epochs including the fraction of the current one. 0 in checkpoints of earlier versions."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions, device, thread count, world size: must be equal for a bitwise equal resume."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run at the end of a step."""

    about: About
    weights: Mapping[str, Tensor]
    """State dict of the model, always with the raw weights."""
    state: Mapping[str, Any] | None = None
    """All other state, as plain values and tensors. ``None`` if only weights are saved."""
