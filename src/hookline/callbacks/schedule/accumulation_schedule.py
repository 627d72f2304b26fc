"""``AccumulationSchedule``: how many batches make a step, changed as training goes on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class AccumulationSchedule(Callback):
    """Sets ``accumulate``: ``{0: 8, 4: 4, 8: 1}`` is eight batches a step from the start, four from epoch 4 on.

    The moments are epochs as whole numbers, counted from zero, or durations: ``{"500st": 4, "0.5dur": 8}``; all in one
    unit. Before the first of them ``accumulate`` of the trainer holds; where the schedule begins at 0 it wins over
    the trainer's, and says so if they differ. A change counts from the next step: a window that has begun is
    finished. The last window of an epoch may be short, and its update is still that of the batches in it.

    The mapping that is passed in stays as it is. It is read again when a run goes on, so a resume is exact.

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
    """What its steps are made of."""

    def __init__(self, scheduling: Mapping[int | str | Duration, int]) -> None:
        if not isinstance(scheduling, Mapping) or not scheduling:
            raise RegistrationError(
                f"AccumulationSchedule({scheduling!r}): give moments and batches a step, such as {{0: 8, 4: 1}}"
            )
        self._entries = [(_moment(key), _factor(key, value)) for key, value in scheduling.items()]
        units = sorted({moment.unit for moment, _ in self._entries if isinstance(moment, Duration)})
        if any(isinstance(moment, int) and moment for moment, _ in self._entries):
            units = sorted({"ep", *units})
        if len(units) > 1:
            raise RegistrationError(
                f"AccumulationSchedule: moments in {' and '.join(units)} cannot be put in one order; use one unit "
                f"(whole numbers are epochs)"
            )
        self.unit = units[0] if units else "ep"
        self._words = ", ".join(f"{moment}: {factor}" for moment, factor in self._entries)
        self._plan: list[tuple[float, int]] = []
        self._given: int | None = None
        """``accumulate`` of the trainer."""
        self._next: float = math.inf
        """The step from which on it is asked whether the next moment has come."""
        self._coming: float = math.inf
        """That moment, in the schedule's unit."""

    @property
    def state_key(self) -> str:
        return f"AccumulationSchedule({{{self._words}}})"

    def on_setup(self, run: Run) -> None:
        self._next = math.inf
        if run.is_training_run:
            if run.clock.batch == 0 or self._given is None:  # else this callback may have changed it
                self._given = run.accumulate
            self._plan, self.unit = self._resolved(run)

    def on_train_start(self, run: Run) -> None:
        factor = self._now(run)
        before = run.accumulate
        if run.clock.batch == 0 and factor is not None and before not in (1, factor):
            logger.warning(
                "AccumulationSchedule begins with %d batches a step; accumulate=%d of the trainer is not used",
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
        """Number of batches in the step after these epochs and steps, or ``None`` if that is not known before.

        ``part`` is that of the epoch that is done.
        """
        plan, unit = self._resolved(run)
        done: dict[str, float] = {"ep": epoch, "st": step, PASSES: epoch + part}
        if unit not in done:
            return None
        return _reached(plan, done[unit]) or self._given or run.accumulate

    def _resolved(self, run: Run) -> tuple[list[tuple[float, int]], str]:
        """The moments as numbers of one unit, in order."""
        found, units = [], [self.unit]
        for moment, factor in self._entries:
            at = moment.of(run.max_duration) if isinstance(moment, Duration) else moment
            if isinstance(at, Duration):
                units.append(at.unit)
            found.append((at.value if isinstance(at, Duration) else at, factor))
        return sorted(found), PASSES if PASSES in units else units[-1]  # whole epochs are passes as well

    def _now(self, run: Run) -> int | None:
        return _reached(self._plan, run.clock.elapsed(self.unit))

    def _set(self, run: Run) -> None:
        factor = self._now(run)
        if factor is not None and run.accumulate != factor:
            run.accumulate = factor
        done = run.clock.elapsed(self.unit)
        self._coming = min((at for at, _ in self._plan if at > done), default=math.inf)
        by_epoch = self._coming == math.inf or self.unit == "ep"  # then the steps have nothing to ask
        self._next = math.inf if by_epoch else 0


def _moment(key: object) -> int | Duration:
    if isinstance(key, int) and not isinstance(key, bool):
        if key < 0:
            raise RegistrationError(f"AccumulationSchedule({{{key}: …}}): epochs are counted from 0")
        return key
    return Duration.parse(key, "AccumulationSchedule({…: …})")  # type: ignore[arg-type]  # it says what is wrong


def _factor(key: object, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RegistrationError(
            f"AccumulationSchedule({{{key!r}: {value!r}}}): batches a step, a whole number from 1 on"
        )
    return value


def _reached(plan: list[tuple[float, int]], done: float) -> int | None:
    """The last entry whose moment has come."""
    return next((factor for at, factor in reversed(plan) if at <= done), None)
