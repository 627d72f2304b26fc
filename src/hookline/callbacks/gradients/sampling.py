"""Which steps are looked at by what is too dear for every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class Sampling:
    """The first step of a run, and then the step that completes each ``every``.

    Epochs are complete with their last batch; where a loader has no length, the first step of the next one counts.
    A step that is skipped is no step: the next one is looked at in its place.
    """

    __slots__ = ("_before", "_due", "_multiple", "_seen", "_step", "_unit", "_value", "every")

    def __init__(self, every: str | Duration) -> None:
        self.every = Duration.parse(every)
        self._unit, self._value = self.every.unit, self.every.value
        self._multiple = self._before = -1  # of ``every``: the last that was looked at, and the one before
        self._step, self._due = -1, False
        self._seen: set[int] = set()

    def begin(self, run: Run) -> None:
        """In ``on_setup``: a share of ``max_duration`` is known now."""
        if run.entry_point in ("fit", "train"):
            every = self.every.of(run.max_duration)
            self._unit, self._value = every.unit, every.value
        self._step, self._due = -1, False
        if run.clock.step == 0:
            self._multiple = -1

    def wants(self, run: Run) -> bool:
        """In ``on_gradients_ready``: whether to look at the gradients of this optimizer. Once in a step for each."""
        if run.clock.step != self._step:
            self._step = run.clock.step
            self._due = self._reaches(run)
            self._seen.clear()
        if not self._due or id(run.optimizer) in self._seen:
            return False
        self._seen.add(id(run.optimizer))
        return True

    def _reaches(self, run: Run) -> bool:
        clock, unit = run.clock, self._unit
        if unit == "st":
            reached: float = clock.step + 1
        elif unit == "ep":
            reached = clock.epoch + (run.loop.position >= run.loop.length)
        else:
            reached = clock.elapsed(unit)
        multiple = int(reached // self._value)
        if multiple <= self._multiple:
            return False
        self._before, self._multiple = self._multiple, multiple
        return True

    def skipped(self, run: Run) -> None:
        """In ``on_step_skipped``: what was seen in this step does not count."""
        if self._due and self._step == run.clock.step:
            self._multiple, self._step = self._before, -1

    def state_dict(self) -> dict[str, Any]:
        return {"every": str(self.every), "multiple": self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """With another ``every`` it begins anew."""
        self._multiple = int(state["multiple"]) if state["every"] == str(self.every) else -1
