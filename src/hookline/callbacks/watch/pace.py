"""When a display is due: rarely enough for the run and for the size of a log, often enough for people."""

from __future__ import annotations

from typing import Final

SHARE: Final = 300
"""A display may take one part in so many of the time; after a slow redraw the next one waits."""
PART, SLOWEST = 40, 3600.0
"""In a log a line waits at least for this part of the run's time, and at most for an hour."""


class Pace:
    """``due`` is the moment of the next redraw. What ends in between is shown at once, as long as it is rare.

    With ``thin`` the interval grows with the run, to a fortieth of its time: the log of a week stays small.

    >>> pace = Pace(10.0, burst=1)
    >>> pace.start(0.0)
    >>> pace.shown(0.0, 0.0)
    >>> pace.due, pace.edge(1.0), pace.edge(2.0), pace.edge(10.0)
    (10.0, True, False, True)
    """

    __slots__ = ("_began", "_burst", "_cost", "_interval", "_refilled", "_spare", "_thin", "due")

    def __init__(self, interval: float, *, burst: int, thin: bool = False) -> None:
        self._interval = interval
        self._burst = self._spare = float(burst)
        self._thin = thin
        self._began = self._refilled = self._cost = self.due = 0.0

    def start(self, now: float) -> None:
        self._began = self._refilled = now
        self._spare = self._burst
        self._cost = 0.0
        self.due = now

    def edge(self, now: float) -> bool:
        """Whether the end of an epoch or an evaluation is shown: some at once, then one in two intervals."""
        self._spare = min(self._burst, self._spare + (now - self._refilled) / (2 * self._interval_at(now)))
        self._refilled = now
        if now >= self.due:
            return True
        if self._spare < 1:
            return False
        self._spare -= 1
        return True

    def shown(self, began: float, ended: float) -> None:
        """A redraw took from ``began`` to ``ended``."""
        # One slow redraw may be chance, or the first, in which everything is cold; two in a row are not.
        cost, self._cost = min(self._cost, ended - began), ended - began
        self.due = ended + max(self._interval_at(ended), SHARE * cost)

    def _interval_at(self, now: float) -> float:
        return max(self._interval, min((now - self._began) / PART, SLOWEST)) if self._thin else self._interval
