"""The part of ``hookline verify-resume`` that runs inside the script that it verifies."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import nn

from hookline.events import Callback
from hookline.progress import Clock
from hookline.run import RunState

VARIABLE = "HOOKLINE_VERIFY_RESUME"


@dataclass(frozen=True, slots=True)
class Verification:
    """Options of the command: where and when to save, when to stop, and whether to resume."""

    folder: Path
    save_at: tuple[int, ...]
    stop_at: int
    resume: bool

    @classmethod
    def asked_for(cls) -> Self | None:
        """Read the environment. Return ``None`` outside of ``hookline verify-resume``."""
        given = os.environ.get(VARIABLE)
        if given is None:
            return None
        wanted = json.loads(given)
        return cls(Path(wanted["folder"]), tuple(wanted["save_at"]), int(wanted["stop_at"]), bool(wanted["resume"]))


def told_to_command(state: RunState, *, saves: bool) -> dict[str, Any]:
    """Return values that no checkpoint holds, which the command reports next to its comparison.

    Args:
        state: The state of the run.
        saves: True if a callback of the script saves the full state.
    """
    owners = {member.key: member.callback for member in state.line.members if not member.is_task}
    title = type(state.model).__name__
    owners |= {f"{title}.{name}".rstrip("."): part for name, part in state.model.named_modules()}
    found = {name: _countable(owner) for name, owner in owners.items() if _is_users(owner)}
    return {"saves": saves, "beside": {name: plain for name, plain in found.items() if plain}}


def _is_users(owner: object) -> bool:
    return type(owner).__module__.partition(".")[0] not in ("hookline", "torch")


def _countable(owner: object) -> dict[str, int | float | str]:
    """Return the plain attributes of an object that no checkpoint holds, and collection sizes."""
    skipped = {*vars(nn.Module()), *(owner.state if isinstance(owner, Callback) else ())}
    values = {name: value for name, value in vars(owner).items() if name not in skipped}
    sized = {name: len(value) if isinstance(value, list | dict | set) else value for name, value in values.items()}
    return {name: value for name, value in sized.items() if type(value) in (int, float, bool, str)}


class AtSteps:
    """Schedule of an action that is due at given steps. It has the methods of ``Schedule``.

    Args:
        steps: The steps.
    """

    every = None

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = sorted(steps)

    def due(self, clock: Clock) -> bool:
        """True if one of the steps is reached."""
        return bool(self._steps) and clock.step >= self._steps[0]

    def fired(self, clock: Clock) -> None:
        """Record that the action runs now."""
        self._steps = [step for step in self._steps if step > clock.step]

    def next_step(self, clock: Clock) -> float:
        """Return the step at which the action is due next."""
        return max(clock.step, self._steps[0]) if self._steps else math.inf
