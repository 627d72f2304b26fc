"""What one checkpoint holds: the weights, the rest of the state, and what its manifest says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a checkpoint without reading its tensors; the head of ``manifest.json``."""

    step: int
    epoch: int
    batch: int
    sample: int
    seconds: float
    run: str
    """The identity of the run that wrote it."""
    generation: int = 0
    """Raised by a rollback or a resume from an older checkpoint: the latest has the highest (generation, step)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each scalar metric, for ``best``."""
    exact: bool = True
    """False for one that was saved after an error inside a step: ``resume="auto"`` passes it over."""
    pending_eval: bool = False
    """A signal left an evaluation: the resume begins with it."""
    finished: bool = False
    """Training had reached its end."""
    passes: float = 0.0
    """The epochs with the part of the one that was under way; 0 if an earlier version wrote it."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions, device, thread count, world size: what must be the same for a resume to be bitwise the same."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run at a step's edge."""

    about: About
    weights: Mapping[str, Tensor]
    """The model's own state dict: always the raw weights."""
    state: Mapping[str, Any] | None = None
    """Everything else, as a tree of plain values and tensors; ``None`` for a checkpoint of weights only."""
