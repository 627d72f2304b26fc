"""The engine's side of ``hookline verify-resume``: a script trains as it is told, whatever its own arguments say."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hookline.progress import Clock

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
