"""``Schedule``: decides when a periodic action is due, also after a resume or a jump."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

from hookline.errors import DurationError, SetupError
from hookline.progress.clock import Clock
from hookline.progress.duration import PASSES, Duration, same_scale


class Schedule:
    """Schedule of an action that is due at each multiple of ``every``.

    If the clock skips several multiples, the action is due once. The schedule stores the multiple, not the step of the
    call: an action that runs late, at step 103 instead of 100, is due again at step 200, not at step 203.

    Args:
        every: Interval between two calls.

    Raises:
        DurationError: If ``every`` is a fraction of ``max_duration``. Use ``Schedule.of`` for a fraction.

    Example:
        >>> clock, schedule = Clock(), Schedule(Duration.parse("100st"))
        >>> schedule.due(clock)
        False
        >>> clock.step = 103
        >>> schedule.due(clock)
        True
        >>> schedule.fired(clock)
        >>> schedule.due(clock), schedule.next_step(clock)
        (False, 200)
    """

    __slots__ = ("_multiple", "_part", "_share", "_unit", "_value", "every")

    def __init__(self, every: Duration) -> None:
        self._share: Duration | None = None
        self._multiple = 0
        self._set(every)

    @classmethod
    def of(cls, every: Duration, max_duration: Duration | None) -> Self:
        """Return a schedule whose ``every`` may be a fraction of ``max_duration``.

        Args:
            every: Interval between two calls.
            max_duration: Length of the run.
        """
        schedule = cls(every.of(max_duration))
        schedule._share = every if every.unit == "dur" else None
        return schedule

    def interval(self, max_duration: Duration | None) -> Duration:
        """Return the interval in a run of another length.

        Args:
            max_duration: Length of the run. A fraction in ``every`` refers to it.

        Raises:
            DurationError: If it is a fraction of ``max_duration``, and that is ``None``.
        """
        return self.every if self._share is None else self._share.of(max_duration)

    def replan(self, max_duration: Duration | None, clock: Clock) -> None:
        """Adapt to a new ``max_duration``. The schedule does not repeat past calls.

        Args:
            max_duration: New length of the run. A fraction in ``every`` refers to it.
            clock: Clock of the run.

        Example:
            >>> clock, schedule = Clock(), Schedule.of(Duration.parse("0.25dur"), Duration.parse("8st"))
            >>> clock.step = 8
            >>> schedule.fired(clock)
            >>> schedule.replan(Duration.parse("16st"), clock)
            >>> schedule, schedule.next_step(clock)
            (Schedule(every='4st', last='8st'), 12)
        """
        every = self.interval(max_duration)
        if every == self.every:
            return
        before = self.state_dict()
        self._set(every)
        if same_scale(Duration.from_state(before["every"]).unit, every.unit):
            self.load_state_dict(before)
        else:
            self.fired(clock)

    def _set(self, every: Duration) -> None:
        if every.unit == "dur":
            raise DurationError(
                f"a schedule cannot count every '{every}', a fraction of max_duration: "
                "resolve it first with .of(max_duration)."
            )
        self.every = every
        # Unit and value are attributes here, because `due` reads them at every step.
        self._unit = every.unit
        self._value = every.value
        # The fraction is exact, because with floats 0.3 // 0.1 is 2.
        self._part = Fraction(repr(every.value)) if every.unit == PASSES else None

    def due(self, clock: Clock) -> bool:
        """True if the clock has crossed a multiple of ``every`` since the last ``fired``.

        Zero does not count as a multiple.

        Args:
            clock: The clock of the run.
        """
        if self._part is None:
            return clock.elapsed(self._unit) // self._value > self._multiple
        batches, length = clock.passes
        return batches * self._part.denominator >= (self._multiple + 1) * self._part.numerator * length

    def fired(self, clock: Clock) -> None:
        """Record that the action runs now.

        If ``every`` is a time, call this method before the action, so that the time of the action counts.

        Args:
            clock: The clock of the run.
        """
        if self._part is None:
            self._multiple = int(clock.elapsed(self._unit) // self._value)
        else:
            self._multiple = int(Fraction(*clock.passes) // self._part)

    def next_step(self, clock: Clock) -> float:
        """Return the earliest step at which the action can be due.

        The caller does not need to call ``due`` before that step. The result depends on the unit:

        - Steps: the next multiple.
        - Epochs: infinity, because the caller calls ``due`` at the end of each epoch.
        - Samples, tokens and time: the next step.
        - Fraction of an epoch: a step that is valid until the epoch's length or ``accumulate`` changes.

        Args:
            clock: Clock of the run.

        Example:
            >>> Schedule(Duration.parse("10st")).next_step(Clock())
            10
            >>> Schedule(Duration.parse("1ep")).next_step(Clock())
            inf
        """
        if self._unit == "st":
            return max(clock.step, (self._multiple + 1) * self._value)
        if self._part is not None:
            return self._next_in_epoch(clock, (self._multiple + 1) * self._part - clock.epoch)
        return math.inf if self._unit == "ep" else clock.step + 1

    def _next_in_epoch(self, clock: Clock, part: Fraction) -> float:
        """Return the step after which at least this fraction of the epoch is done.

        The result is infinite at the end of the epoch, because the caller calls ``due`` there in any case.
        """
        if clock.epoch_batches is None or part >= 1:
            return math.inf
        batches, length = clock.passes
        missing = math.ceil(part * length) - (batches - clock.epoch * length)
        return clock.step + max(0, math.ceil(missing / clock.batches_per_step))

    def state_dict(self) -> dict[str, Any]:
        """Return ``every`` as a string and the last multiple."""
        return {"every": str(self.every), "multiple": self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved schedule, which may have another ``every``.

        If both have the same unit, the schedule keeps the last call. If the units differ, the last call is unknown, and
        the schedule starts from scratch: the action is due as soon as the clock has passed the first multiple.

        Args:
            state: Result of ``state_dict()``.

        Raises:
            SetupError: If the state lacks a value.

        Example:
            >>> schedule = Schedule(Duration.parse("50st"))
            >>> schedule.load_state_dict({"every": "100st", "multiple": 3})
            >>> schedule
            Schedule(every='50st', last='300st')
        """
        if not {"every", "multiple"} <= state.keys():
            raise SetupError(
                f"the saved schedule has {', '.join(state) or 'nothing'} and needs every, multiple: "
                "give what Schedule.state_dict() returned."
            )
        saved, multiple = Duration.from_state(state["every"]), int(state["multiple"])
        if saved == self.every:
            self._multiple = multiple
        elif same_scale(saved.unit, self._unit):
            self._multiple = int(multiple * Fraction(repr(saved.value)) // Fraction(repr(self._value)))
        else:
            self._multiple = 0

    def __repr__(self) -> str:
        last = f"'{Duration(self._multiple * self._value, self._unit)}'" if self._multiple else "never"
        return f"Schedule(every='{self.every}', last={last})"
