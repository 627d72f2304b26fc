"""Steps at which a callback measures something that is too expensive for every step."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run


class SampledSteps:
    """Selector of the first step of a run, and of the step that completes each ``every``.

    The last batch of an epoch completes the epoch. If a loader has no length, the first step of the next epoch counts.
    """

    __slots__ = ("_before", "_multiple", "_unit", "_value", "every")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self.every = Duration.parse(every, f"{reader}(every=…)")
        self._unit = self.every.unit
        self._value: float | Fraction = self.every.value
        self._multiple = self._before = -1  # The last two selected multiples of ``every``.

    def begin(self, run: Run) -> None:
        """Prepare for a run in ``on_setup``, where the length of a fraction of the run is known."""
        if run.is_training_run:
            every = self.every.of(run.max_duration)
            self._unit = every.unit
            self._value = Fraction(repr(every.value)) if every.unit == PASSES else every.value

    def take(self, run: Run, *, at_end: bool = False) -> bool:
        """Return whether to measure this step, and mark the step as measured.

        Call it in ``on_train_step_start``, or with ``at_end`` when all batches of the step are read.
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
        """Return the fraction of the epoch's data that has been read after this step.

        For a duration in epochs, return 1 for a complete epoch, else 0.
        """
        read, length = run.batches_read + (0 if at_end else run.accumulate - 1), run.num_batches("train")
        if self._unit == "ep" or length is None:
            return int(length is not None and read >= length)
        return min(Fraction(read, length), Fraction(1))

    def return_last(self) -> None:
        """Select the next step instead, because the last selected step was skipped."""
        self._multiple = self._before

    def state_dict(self, *, skipped: bool = False) -> dict[str, Any]:
        """Return the state. With ``skipped``, as if the last selected step had not been measured."""
        return {"every": str(self.every), "multiple": self._before if skipped else self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state, or start from scratch if ``every`` has changed."""
        self._multiple = int(state["multiple"]) if state["every"] == str(self.every) else -1


class SampledGradients:
    """``SampledSteps`` for gradients: if a measured step is skipped, the next step replaces it."""

    __slots__ = ("_due", "_seen", "_step", "_steps")

    def __init__(self, reader: str, every: str | Duration) -> None:
        self._steps = SampledSteps(reader, every)
        self._step, self._due = -1, False
        self._seen: set[int] = set()

    @property
    def every(self) -> Duration:
        """How often gradients are measured."""
        return self._steps.every

    def begin(self, run: Run) -> None:
        """Prepare for a run. Call it in ``on_setup``."""
        self._steps.begin(run)
        self._step, self._due = -1, False

    def take(self, run: Run) -> bool:
        """True once per due step and optimizer. Call it in ``on_gradients_ready``."""
        if run.clock.step != self._step:
            self._step = run.clock.step
            self._due = self._steps.take(run, at_end=True)
            self._seen.clear()
        if not self._due or id(run.optimizer) in self._seen:
            return False
        self._seen.add(id(run.optimizer))
        return True

    def skipped(self, run: Run) -> None:
        """Discard the measurement of this step. Call it in ``on_step_skipped``."""
        if self._due and self._step == run.clock.step:
            self._steps.return_last()
            self._step = -1

    def state_dict(self) -> dict[str, Any]:
        return self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps.load_state_dict(state)
        # A rollback repeats steps.
        self._step, self._due = -1, False
