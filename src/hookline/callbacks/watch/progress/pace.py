"""``Pace``: when a display is due, limited in cost and in the size of a log."""

from __future__ import annotations

from typing import Final

SHARE: Final = 300
"""A display may take 1/300 of the time. After a slow update, the next one waits longer."""
PART, SLOWEST = 40, 3600.0
"""Limits of ``thin``: the interval grows to 1/40 of the run's time, but not above one hour."""


class Pace:
    """Time of the next update, in ``due``.

    The ends of epochs are shown at once while they are rare.

    Args:
        interval: Seconds between two updates.
        burst: Number of ends of epochs and evaluations that are shown at once between two updates.
        thin: Let the interval grow to 1/40 of the run's time, so that the log of a week stays small.

    Example:
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
        """Start to measure time."""
        self._began = self._refilled = now
        self._spare = self._burst
        self._cost = 0.0
        self.due = now

    def edge(self, now: float) -> bool:
        """Return whether to show the end of an epoch or evaluation, and count it.

        Some are shown at once, then one per two intervals.
        """
        self._spare = min(self._burst, self._spare + (now - self._refilled) / (2 * self._interval_at(now)))
        self._refilled = now
        if now >= self.due:
            return True
        if self._spare < 1:
            return False
        self._spare -= 1
        return True

    def shown(self, began: float, ended: float) -> None:
        """Record that an update took from ``began`` to ``ended``."""
        # A single slow update may be chance or the first one, with cold caches. Two in a row are not.
        cost, self._cost = min(self._cost, ended - began), ended - began
        self.due = ended + max(self._interval_at(ended), SHARE * cost)

    def _interval_at(self, now: float) -> float:
        """Return the interval at this time of the run."""
        return max(self._interval, min((now - self._began) / PART, SLOWEST)) if self._thin else self._interval
