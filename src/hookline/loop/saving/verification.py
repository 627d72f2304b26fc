"""The engine's side of ``hookline verify-resume``: a script trains as it is told, whatever its own arguments say."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from hookline.events import Callback
from hookline.progress import Clock

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine

VARIABLE = "HOOKLINE_VERIFY_RESUME"


@dataclass(frozen=True, slots=True)
class Verification:
    """Save at these steps, in this folder, end at that step, and begin anew or go on."""

    folder: Path
    save_at: tuple[int, ...]
    stop_at: int
    resume: bool

    @classmethod
    def asked_for(cls) -> Self | None:
        """What the environment asks for; nothing outside of ``hookline verify-resume``."""
        given = os.environ.get(VARIABLE)
        if given is None:
            return None
        wanted = json.loads(given)
        return cls(Path(wanted["folder"]), tuple(wanted["save_at"]), int(wanted["stop_at"]), bool(wanted["resume"]))


def told_to_command(loop: Engine) -> dict[str, Any]:
    """What the command tells, besides what it compares: does the script save by itself, and what does nobody save."""
    owners = {member.key: member.callback for member in loop.line.members if not member.is_task}
    title = type(loop.state.model).__name__
    owners |= {f"{title}.{name}".rstrip("."): part for name, part in loop.state.model.named_modules()}
    found = {name: _countable(owner) for name, owner in owners.items() if _is_users(owner)}
    return {"saves": loop.saving.is_asked_to_save, "beside": {name: plain for name, plain in found.items() if plain}}


def _is_users(owner: object) -> bool:
    return type(owner).__module__.partition(".")[0] not in ("hookline", "torch")


def _countable(owner: object) -> dict[str, int | float | str]:
    """Its plain attributes that no checkpoint holds; of a collection its size."""
    skipped = {*vars(nn.Module()), *(owner.state if isinstance(owner, Callback) else ())}
    values = {name: value for name, value in vars(owner).items() if name not in skipped}
    sized = {name: len(value) if isinstance(value, list | dict | set) else value for name, value in values.items()}
    return {name: value for name, value in sized.items() if type(value) in (int, float, bool, str)}


class AtSteps:
    """Due at each of some steps; has the methods of ``Schedule``."""

    every = None

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = sorted(steps)

    def due(self, clock: Clock) -> bool:
        return bool(self._steps) and clock.step >= self._steps[0]

    def fired(self, clock: Clock) -> None:
        self._steps = [step for step in self._steps if step > clock.step]

    def next_step(self, clock: Clock) -> float:
        return max(clock.step, self._steps[0]) if self._steps else math.inf
