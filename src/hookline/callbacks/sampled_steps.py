"""Which steps are looked at by what is too dear for every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class SampledSteps:
    """The first step of a run, and then the step that completes each ``every``.

    Epochs are complete with their last batch; where a loader has no length, the first step of the next one counts.
    """

    __slots__ = ("_before", "_multiple", "_unit", "_value", "every")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self.every = Duration.parse(every, f"{reader}(every=…)")
        self._unit, self._value = self.every.unit, self.every.value
        self._multiple = self._before = -1  # of ``every``: the last that was looked at, and the one before

    def begin(self, run: Run) -> None:
        """In ``on_setup``: a share of ``max_duration`` is known now."""
        if run.entry_point in ("fit", "train"):
            every = self.every.of(run.max_duration)
            self._unit, self._value = every.unit, every.value
        if run.clock.step == 0:
            self._multiple = -1

    def reaches(self, run: Run, *, at_end: bool = False) -> bool:
        """In ``on_train_step_start``, or ``at_end`` when all its batches are read: whether to look at this step.

        It then counts as looked at.
        """
        clock, unit = run.clock, self._unit
        if unit == "st":
            reached: float = clock.step + 1
        elif unit == "ep":
            loop = run.loop
            to_come = 0 if at_end else loop.accumulate - 1
            reached = clock.epoch + (loop.position + to_come >= loop.length)
        else:
            reached = clock.elapsed(unit)
        multiple = int(reached // self._value)
        if multiple <= self._multiple:
            return False
        self._before, self._multiple = self._multiple, multiple
        return True

    def take_back(self) -> None:
        """The step that was looked at was skipped: the next is looked at in its place."""
        self._multiple = self._before

    def state_dict(self, *, skipped: bool = False) -> dict[str, Any]:
        """``skipped``: as if the step that was looked at last had not been."""
        return {"every": str(self.every), "multiple": self._before if skipped else self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """With another ``every`` it begins anew."""
        self._multiple = int(state["multiple"]) if state["every"] == str(self.every) else -1
