"""Which steps are looked at by what is too dear for every step."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run


class SampledSteps:
    """The first step of a run, and then the step that completes each ``every``.

    Epochs are complete with their last batch; where a loader has no length, the first step of the next one counts.
    """

    __slots__ = ("_before", "_multiple", "_unit", "_value", "every")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self.every = Duration.parse(every, f"{reader}(every=…)")
        self._unit = self.every.unit
        self._value: float | Fraction = self.every.value
        self._multiple = self._before = -1  # of ``every``: the last that was looked at, and the one before

    def begin(self, run: Run) -> None:
        """In ``on_setup``: a share of ``max_duration`` is known now."""
        if run.is_training_run:
            every = self.every.of(run.max_duration)
            self._unit = every.unit
            self._value = Fraction(repr(every.value)) if every.unit == PASSES else every.value
        if run.clock.step == 0:
            self._multiple = -1

    def reaches(self, run: Run, *, at_end: bool = False) -> bool:
        """In ``on_train_step_start``, or ``at_end`` when all its batches are read: whether to look at this step.

        It then counts as looked at.
        """
        clock, unit = run.clock, self._unit
        if unit == "st":
            reached: float | Fraction = clock.step + 1
        elif unit == "ep" or unit == PASSES:
            reached = clock.epoch + self._part_of_epoch(run, at_end)
        else:
            reached = clock.elapsed(unit)
        multiple = int(reached // self._value)
        if multiple <= self._multiple:
            return False
        self._before, self._multiple = self._multiple, multiple
        return True

    def _part_of_epoch(self, run: Run, at_end: bool) -> int | Fraction:
        """How much of the epoch's data has been read once this step is made; of whole epochs, all or nothing."""
        read, length = run.batches_read + (0 if at_end else run.accumulate - 1), run.num_batches("train")
        if self._unit == "ep" or length is None:
            return int(length is not None and read >= length)
        return min(Fraction(read, length), Fraction(1))

    def take_back(self) -> None:
        """The step that was looked at was skipped: the next is looked at in its place."""
        self._multiple = self._before

    def state_dict(self, *, skipped: bool = False) -> dict[str, Any]:
        """``skipped``: as if the step that was looked at last had not been."""
        return {"every": str(self.every), "multiple": self._before if skipped else self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """With another ``every`` it begins anew."""
        self._multiple = int(state["multiple"]) if state["every"] == str(self.every) else -1
