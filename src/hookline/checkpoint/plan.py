"""``SavePlan``: what a callback that saves asks of the engine, which does the saving."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from hookline.checkpoint.names import check_name
from hookline.checkpoint.retention import Keep
from hookline.checkpoint.snapshot import About
from hookline.errors import SetupError
from hookline.progress import Duration

FOLDER = "checkpoints"
"""Where checkpoints lie in a run's folder, unless a plan says otherwise; a resume looks there."""

RESERVED = ("media", "spikes")
"""Folders of a run in which Hookline itself writes and deletes files."""

FIELDS = ("step", "epoch", "batch", "sample", "generation")
"""What a name may hold, besides metrics, which have a slash in theirs."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """When to save, what, where, and what is kept."""

    every: Duration | None = None
    at_end: bool = True
    on_exception: bool = False
    keep: Keep | None = None
    """``None`` keeps all."""
    monitor: str | None = None
    """The metric by which one is the best."""
    mode: Literal["min", "max"] = "min"
    weights_only: bool = False
    background: bool = False
    name: str | None = None
    """A template such as ``"step-{step:08d}"``; the store's own names if not given. One that is taken gets a number."""
    folder: str = FOLDER
    on_error: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "warn"):
            raise SetupError(f"on_error={self.on_error!r}: give 'raise', or 'warn' to go on without the checkpoint")
        if PurePath(self.folder).parts[:1] in [(name,) for name in RESERVED]:
            raise SetupError(
                f"folder={self.folder!r}: Hookline keeps other files of the run in it. Give another folder, such as "
                f"'milestones'."
            )
        if self.name is not None:
            self._check_name(self.name)

    def name_of(self, about: About) -> str | None:
        """The name of one checkpoint.

        >>> about = About(step=500, epoch=2, batch=0, sample=0, seconds=0, run="r", metrics={"val/loss": 0.25})
        >>> SavePlan(name="{epoch}-{step:06d}-{val/loss:.2f}").name_of(about)
        '2-000500-0.25'
        """
        if self.name is None:
            return None
        return check_name(_filled(self.name, {**about.metrics, **{field: getattr(about, field) for field in FIELDS}}))

    @property
    def is_resumed(self) -> bool:
        """Whether ``resume="auto"`` finds what this plan saves."""
        return self.folder == FOLDER and not self.weights_only

    def _check_name(self, name: str) -> None:
        """Said when the callback is made, and not hours later, when the first checkpoint is due."""
        try:
            check_name(_filled(name, dict.fromkeys(FIELDS, 1)))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise SetupError(
                f"name={name!r} cannot be filled in ({error}); there is {', '.join(FIELDS)}, and metrics such as "
                f"val/loss: write for example '{{step:06d}}-{{val/loss:.3f}}'"
            ) from error


class _NotMeasured:
    """A metric that has no value at this step: a save because of a signal, say, comes between two evaluations."""

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
