"""``SavePlan``: what a callback that saves asks of the engine, which does the saving."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Literal

from hookline.checkpoint.names import check_name
from hookline.checkpoint.retention import Keep
from hookline.checkpoint.snapshot import About
from hookline.errors import SetupError
from hookline.progress import Duration

FOLDER = "checkpoints"
"""Where checkpoints lie in a run's folder, unless a plan says otherwise; a resume looks there."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """When to save, what, where, and what is kept."""

    every: Duration | None = None
    at_end: bool = True
    on_exception: bool = False
    keep: Keep | None = None
    """``None`` keeps all."""
    weights_only: bool = False
    background: bool = False
    name: str | None = None
    """A template such as ``"step-{step:08d}"``; the store's own names if not given."""
    folder: str = FOLDER
    on_error: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "warn"):
            raise SetupError(
                f"on_save_error={self.on_error!r}: give 'raise', or 'warn' to go on without the checkpoint"
            )
        if self.name is not None and not any(field in ("step", "batch", "sample") for field in _fields(self.name)):
            raise SetupError(f"name={self.name!r}: each checkpoint needs its own; write '{{step}}' into it")

    def name_of(self, about: About) -> str | None:
        """The name of one checkpoint.

        >>> about = About(step=500, epoch=2, batch=0, sample=0, seconds=0, run="r", metrics={"val/loss": 0.25})
        >>> SavePlan(name="{epoch}-{step:06d}-{val/loss:.2f}").name_of(about)
        '2-000500-0.25'
        """
        if self.name is None:
            return None
        known: dict[str, float] = {
            "step": about.step,
            "epoch": about.epoch,
            "batch": about.batch,
            "sample": about.sample,
        }
        known |= {"generation": about.generation, **about.metrics}
        try:
            return check_name(string.Formatter().vformat(self.name, (), known))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise SetupError(
                f"name={self.name!r} cannot be filled in ({error}); there is {', '.join(known)}, and the metrics "
                f"that were measured at this step"
            ) from error


def _fields(template: str) -> list[str | None]:
    try:
        return [field for _, field, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise SetupError(f"name={template!r} is no template: {error}; write for example 'step-{{step:08d}}'") from error
