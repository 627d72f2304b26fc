"""``Schedule``: when something that happens every so often is due, also after a resume or a jump."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookline.errors import DurationError, SetupError
from hookline.progress.clock import Clock
from hookline.progress.duration import Duration


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

    __slots__ = ("_multiple", "_unit", "_value", "every")

    def __init__(self, every: Duration) -> None:
        if every.unit == "dur":
            raise DurationError(
                f"a schedule cannot count every '{every}', a share of max_duration: "
                "resolve it first with .of(max_duration)."
            )
        self.every = every
        # Taken out of the duration because due() is asked at every step.
        self._unit = every.unit
        self._value = every.value
        self._multiple = 0

    def due(self, clock: Clock) -> bool:
        """Whether the clock has crossed a multiple of ``every`` since the last ``fired``; zero is none."""
        return clock.elapsed(self._unit) // self._value > self._multiple

    def fired(self, clock: Clock) -> None:
        """Record that it happened now. For time, call it before the work: what the work takes then counts."""
        self._multiple = int(clock.elapsed(self._unit) // self._value)

    def next_step(self, clock: Clock) -> float:
        """The earliest step at which it could be due, so that the steps before need not ask.

        Infinite for epochs, which are asked about at their edge; samples, tokens and time can be due at
        any step.

        >>> Schedule(Duration.parse("10st")).next_step(Clock())
        10
        >>> Schedule(Duration.parse("1ep")).next_step(Clock())
        inf
        """
        if self._unit == "st":
            return max(clock.step, (self._multiple + 1) * self._value)
        return math.inf if self._unit == "ep" else clock.step + 1

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
        saved, multiple = Duration.parse(state["every"]), int(state["multiple"])
        if saved == self.every:
            self._multiple = multiple
        elif saved.unit == self._unit:
            self._multiple = int(multiple * saved.value // self._value)
        else:
            self._multiple = 0

    def __repr__(self) -> str:
        last = f"'{Duration(self._multiple * self._value, self._unit)}'" if self._multiple else "never"
        return f"Schedule(every='{self.every}', last={last})"
