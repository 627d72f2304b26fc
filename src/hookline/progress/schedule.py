"""``Schedule``: when something that happens every so often is due, also after a resume or a jump."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

from hookline.errors import DurationError, SetupError
from hookline.progress.clock import Clock
from hookline.progress.duration import PASSES, Duration, same_scale


class Schedule:
    """Due at each multiple of ``every``, and if some were jumped over, once for all of them.

    What is remembered is the multiple that was reached, not the moment: one that fires late, at step
    103 instead of 100, is due again at 200 and not at 203.

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
        """Return a schedule whose ``every`` may be a fraction of ``max_duration``."""
        schedule = cls(every.of(max_duration))
        schedule._share = every if every.unit == "dur" else None
        return schedule

    def replan(self, max_duration: Duration | None, clock: Clock) -> None:
        """Plan again for a new ``max_duration``. A fraction refers to the new one; what has fired stays fired.

        >>> clock, schedule = Clock(), Schedule.of(Duration.parse("0.25dur"), Duration.parse("8st"))
        >>> clock.step = 8
        >>> schedule.fired(clock)
        >>> schedule.replan(Duration.parse("16st"), clock)
        >>> schedule, schedule.next_step(clock)
        (Schedule(every='4st', last='8st'), 12)
        """
        every = self.every if self._share is None else self._share.of(max_duration)
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
        # Taken out of the duration because due() is asked at every step.
        self._unit = every.unit
        self._value = every.value
        # Exact: in floats 0.3 // 0.1 is 2.
        self._part = Fraction(repr(every.value)) if every.unit == PASSES else None

    def due(self, clock: Clock) -> bool:
        """Whether the clock has crossed a multiple of ``every`` since the last ``fired``; zero is none."""
        if self._part is None:
            return clock.elapsed(self._unit) // self._value > self._multiple
        batches, length = clock.passes
        return batches * self._part.denominator >= (self._multiple + 1) * self._part.numerator * length

    def fired(self, clock: Clock) -> None:
        """Record that it happened now. For time, call it before the work: what the work takes then counts."""
        if self._part is None:
            self._multiple = int(clock.elapsed(self._unit) // self._value)
        else:
            self._multiple = int(Fraction(*clock.passes) // self._part)

    def next_step(self, clock: Clock) -> float:
        """The earliest step at which it could be due, so that the steps before need not ask.

        Infinite for epochs, which are asked about at their edge; samples, tokens and time can be due at
        any step. For parts of an epoch the answer holds until its length or ``accumulate`` changes.

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
        """The step after which at least this part of the epoch is done; the edge is asked about in any case."""
        if clock.epoch_batches is None or part >= 1:
            return math.inf
        batches, length = clock.passes
        missing = math.ceil(part * length) - (batches - clock.epoch * length)
        return clock.step + max(0, math.ceil(missing / clock.batches_per_step))

    def state_dict(self) -> dict[str, Any]:
        """``every`` as text and the last multiple, as plain values."""
        return {"every": str(self.every), "multiple": self._multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved schedule, also from one with another ``every``.

        In the same unit the last firing is kept. In another unit it is not known when that was, and the
        schedule begins anew: it is due as soon as the clock is past its first multiple.

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
