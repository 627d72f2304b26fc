"""``SavePlan``: the checkpoints that a callback requests from the engine."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from hookline.checkpoint.names import check_name
from hookline.checkpoint.retention import Keep
from hookline.checkpoint.snapshot import About
from hookline.errors import ArgumentError
from hookline.progress import Duration

FOLDER = "checkpoints"
"""Default folder of checkpoints inside a run's folder. ``resume="auto"`` searches it."""

RESERVED = ("media", "spikes")
"""Folders inside a run's folder in which Hookline itself writes and deletes files."""

FIELDS = ("step", "epoch", "batch", "sample", "generation")
"""Fields that a name may contain in addition to metrics, whose names contain a slash."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """When to save a checkpoint, its content, its folder, and which checkpoints to keep.

    Args:
        every: Interval between checkpoints. ``None`` saves none during training.
        at_end: Save when training ends.
        on_exception: Save when an exception ends the run.
        keep: Which checkpoints to keep. ``None`` keeps all.
        monitor: Name of the metric that decides which checkpoint is the best.
        mode: ``"min"`` or ``"max"``: whether a smaller or a larger value of the metric is better.
        weights_only: Save the weights without the state that a resume needs.
        background: Write in a thread while training continues.
        name: Template of the name, such as ``"step-{step:08d}"``. ``None`` uses the default names. If a name is
            taken, the new checkpoint gets a number.
        folder: Folder inside the run's folder.
        on_error: ``"raise"``, or ``"warn"`` to continue without the checkpoint.

    Raises:
        ArgumentError: If ``on_error``, ``folder`` or ``name`` is invalid.
    """

    every: Duration | None = None
    at_end: bool = True
    on_exception: bool = False
    keep: Keep | None = None
    monitor: str | None = None
    mode: Literal["min", "max"] = "min"
    weights_only: bool = False
    background: bool = False
    name: str | None = None
    folder: str = FOLDER
    on_error: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "warn"):
            raise ArgumentError(f"SavePlan(on_error={self.on_error!r}): must be 'raise' or 'warn'.")
        if PurePath(self.folder).parts[:1] in [(name,) for name in RESERVED]:
            raise ArgumentError(
                f"SavePlan(folder={self.folder!r}): Hookline keeps other files of the run in it. Give another folder, "
                f"such as 'milestones'."
            )
        if self.name is not None:
            self._check_name(self.name)

    def name_of(self, about: About) -> str | None:
        """Return the name of one checkpoint, or ``None`` for the default name.

        >>> about = About(step=500, epoch=2, batch=0, sample=0, seconds=0, run="r", metrics={"val/loss": 0.25})
        >>> SavePlan(name="{epoch}-{step:06d}-{val/loss:.2f}").name_of(about)
        '2-000500-0.25'
        """
        if self.name is None:
            return None
        return check_name(_filled(self.name, {**about.metrics, **{field: getattr(about, field) for field in FIELDS}}))

    @property
    def is_resumed(self) -> bool:
        """True if ``resume="auto"`` finds the checkpoints of this plan."""
        return self.folder == FOLDER and not self.weights_only

    def _check_name(self, name: str) -> None:
        """Check the template when the callback is created, not when the first checkpoint is due."""
        try:
            check_name(_filled(name, dict.fromkeys(FIELDS, 1)))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise ArgumentError(
                f"SavePlan(name={name!r}): cannot be filled in ({error}). The fields are {', '.join(FIELDS)}, and "
                f"metrics such as val/loss. Write for example '{{step:06d}}-{{val/loss:.3f}}'."
            ) from error


class _NotMeasured:
    """Placeholder for a metric without a value yet, for example in a save after a signal."""

    def __format__(self, spec: str) -> str:
        format(1.0, spec)
        return "none"


class _Known(dict[str, Any]):
    def __missing__(self, field: str) -> _NotMeasured:
        if "/" in field:
            return _NotMeasured()
        raise KeyError(field)


def _filled(template: str, known: Mapping[str, Any]) -> str:
    return string.Formatter().vformat(template, (), _Known(known))
