"""``AccumulationSchedule``: change the number of batches per step during training."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class AccumulationSchedule(Callback):
    """Change the number of batches per optimizer step during training.

    A change takes effect at the next step. The last accumulation window of an epoch may have fewer batches.

    Args:
        scheduling: Number of batches per step, by the time from which the number applies. The keys are epochs,
            counted from 0, or durations such as ``"500st"`` and ``"0.5dur"``. All keys use one unit, but 0 goes with
            every unit. Before the first key, ``accumulate`` of the trainer applies. If the schedule starts at 0, it
            replaces ``accumulate``, and Hookline warns if the two differ.

    Raises:
        ArgumentError: If the mapping is empty, a number of batches is below 1, or the keys mix units.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[AccumulationSchedule({0: 4, 1: 2})], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> trainer.fit(TinyModel(), tiny_data(batches=4), loss=loss, optimizer=optimizer).clock.step
        3
    """

    role = "plan"
    writes = ("optimizer",)
    """The callback decides how many batches an optimizer step uses."""

    def __init__(self, scheduling: Mapping[int | str | Duration, int]) -> None:
        if not scheduling:
            raise ArgumentError(
                f"AccumulationSchedule(scheduling={scheduling!r}): is empty. Write for example {{0: 8, 4: 1}}."
            )
        self._entries = [(_moment(key), _factor(key, value)) for key, value in scheduling.items()]
        units = sorted({moment.unit for moment, _ in self._entries if isinstance(moment, Duration)})
        if any(isinstance(moment, int) and moment for moment, _ in self._entries):
            units = sorted({"ep", *units})
        if len(units) > 1:
            raise ArgumentError(
                f"AccumulationSchedule(scheduling=…): {' and '.join(units)} cannot be put in one order. Use one unit. "
                f"Integers are epochs."
            )
        self.unit = units[0] if units else "ep"
        self._words = ", ".join(f"{moment}: {factor}" for moment, factor in self._entries)
        self._plan: list[tuple[float, int]] = []
        self._given: int | None = None
        """``accumulate`` of the trainer."""
        self._next: float = math.inf
        """First step at which to check if the next entry applies. Infinite: never check."""
        self._coming: float = math.inf
        """Time of the next entry, in the unit of the schedule."""

    @property
    def state_key(self) -> str:
        return f"AccumulationSchedule({{{self._words}}})"

    def on_setup(self, run: Run) -> None:
        self._next = math.inf
        if run.is_training_run:
            # Later in a run, `accumulate` may be a value that this callback has set.
            if run.clock.batch == 0 or self._given is None:
                self._given = run.accumulate
            self._plan, self.unit = self._resolved(run)

    def on_train_start(self, run: Run) -> None:
        factor = self._now(run)
        before = run.accumulate
        if run.clock.batch == 0 and factor is not None and before not in (1, factor):
            logger.warning(
                "AccumulationSchedule begins with %d batches per step; accumulate=%d of the trainer is not used",
                factor,
                before,
            )
        self._set(run)

    def on_train_epoch_start(self, run: Run) -> None:
        self._set(run)

    def on_train_step_end(self, run: Run) -> None:
        if run.clock.step >= self._next and run.clock.elapsed(self.unit) >= self._coming:
            self._set(run)

    def on_rollback(self, run: Run) -> None:
        self._set(run)

    def planned(self, epoch: int, step: int, part: float, run: Run) -> int | None:
        """Return the number of batches in the next step, or ``None`` if it is not known in advance.

        Args:
            epoch: Number of finished epochs.
            step: Number of finished steps.
            part: Fraction of the current epoch that is done.
            run: The run.
        """
        plan, unit = self._resolved(run)
        done: dict[str, float] = {"ep": epoch, "st": step, PASSES: epoch + part}
        if unit not in done:
            return None
        return _reached(plan, done[unit]) or self._given or run.accumulate

    def _resolved(self, run: Run) -> tuple[list[tuple[float, int]], str]:
        """Return the sorted start times as numbers of one unit, and this unit."""
        found, units = [], [self.unit]
        for moment, factor in self._entries:
            at = moment.of(run.max_duration) if isinstance(moment, Duration) else moment
            if isinstance(at, Duration):
                units.append(at.unit)
            found.append((at.value if isinstance(at, Duration) else at, factor))
        # Whole epochs can also be counted as passes over the data.
        return sorted(found), PASSES if PASSES in units else units[-1]

    def _now(self, run: Run) -> int | None:
        """Return the number of batches that applies now, or ``None`` before the first entry."""
        return _reached(self._plan, run.clock.elapsed(self.unit))

    def _set(self, run: Run) -> None:
        """Set ``run.accumulate`` and find out when the next entry applies."""
        factor = self._now(run)
        if factor is not None and run.accumulate != factor:
            run.accumulate = factor
        done = run.clock.elapsed(self.unit)
        self._coming = min((at for at, _ in self._plan if at > done), default=math.inf)
        # An entry in epochs is applied at the start of the epoch, so that steps need no check.
        by_epoch = self._coming == math.inf or self.unit == "ep"
        self._next = math.inf if by_epoch else 0


def _moment(key: object) -> int | Duration:
    """Parse a key of the schedule: an epoch or a duration."""
    if isinstance(key, int) and not isinstance(key, bool):
        if key < 0:
            raise ArgumentError(f"AccumulationSchedule(scheduling={{{key}: …}}): must be >= 0. The first epoch is 0.")
        return key
    return Duration.parse(key, "AccumulationSchedule(scheduling={…: …})")  # type: ignore[arg-type]  # It checks the type.


def _factor(key: object, value: int) -> int:
    """Return the number of batches per step, after a check."""
    if value < 1:
        raise ArgumentError(f"AccumulationSchedule(scheduling={{{key!r}: {value!r}}}): batches per step must be >= 1.")
    return value


def _reached(plan: list[tuple[float, int]], done: float) -> int | None:
    """Return the value of the last entry that has been reached."""
    return next((factor for at, factor in reversed(plan) if at <= done), None)
