"""The engine's side of ``hookline verify-resume``: the command decides when a script saves, resumes and stops."""

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
    """What the command wants: where and at which steps to save, where to stop, and whether to resume."""

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
    """Return what the command reports in addition to what it compares: values that no checkpoint holds.

    Args:
        state: The state of the run.
        saves: True if a callback of the script saves the whole state.
    """
    owners = {member.key: member.callback for member in state.line.members if not member.is_task}
    title = type(state.model).__name__
    owners |= {f"{title}.{name}".rstrip("."): part for name, part in state.model.named_modules()}
    found = {name: _countable(owner) for name, owner in owners.items() if _is_users(owner)}
    return {"saves": saves, "beside": {name: plain for name, plain in found.items() if plain}}


def _is_users(owner: object) -> bool:
    return type(owner).__module__.partition(".")[0] not in ("hookline", "torch")


def _countable(owner: object) -> dict[str, int | float | str]:
    """The plain attributes of a user's object that no checkpoint holds, and the sizes of its collections."""
    skipped = {*vars(nn.Module()), *(owner.state if isinstance(owner, Callback) else ())}
    values = {name: value for name, value in vars(owner).items() if name not in skipped}
    sized = {name: len(value) if isinstance(value, list | dict | set) else value for name, value in values.items()}
    return {name: value for name, value in sized.items() if type(value) in (int, float, bool, str)}


class AtSteps:
    """Schedule of an action that is due at each of some steps. It has the methods of ``Schedule``.

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
        """The action was done at the step of the clock."""
        self._steps = [step for step in self._steps if step > clock.step]

    def next_step(self, clock: Clock) -> float:
        """Return the step at which the action is due next."""
        return max(clock.step, self._steps[0]) if self._steps else math.inf
