"""Usual values of a loss or gradient norm, and how far a new value is from them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hookline.errors import MetricError

Method = Literal["zscore", "factor"]
SPREAD = 1.4826
"""Ratio of standard deviation to median absolute deviation for normal distributions."""
LEAST_SPREAD = 0.05
"""Smallest standard deviation, as a fraction of the median.

Without it, almost equal values would make every other value a spike.
"""


class Judgement(NamedTuple):
    """Whether a value is a spike, with the usual value and the distance from it."""

    spike: bool
    usual: float | None = None
    score: float | None = None


class UsualValues:
    """Recent good values, to judge whether a new value is a spike.

    Only a value above the usual values can be a spike. A value that is not finite always is. ``"zscore"`` measures the
    distance from the median in robust standard deviations, ``"factor"`` the ratio to the mean. With fewer than
    ``warmup`` values, no finite value is a spike.

    Example:
        >>> usual = UsualValues("zscore", threshold=8.0, window=50, warmup=3)
        >>> for value in (1.0, 1.1, 0.9, 1.0):
        ...     usual.add(value)
        >>> usual.judge(1.2).spike, usual.judge(3.0).spike, usual.judge(0.0).spike
        (False, True, False)
    """

    __slots__ = ("_method", "_sorted", "_threshold", "_values", "_warmup")

    def __init__(self, method: Method, threshold: float, window: int, warmup: int) -> None:
        self._method, self._threshold, self._warmup = method, threshold, warmup
        self._values: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Add a good value and drop the oldest one if the window is full."""
        if len(self._values) == self._values.maxlen:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)

    def judge(self, value: float) -> Judgement:
        """Return whether the value is a spike, without adding it."""
        if not math.isfinite(value):
            return Judgement(spike=True)
        if len(self._values) < self._warmup:
            return Judgement(spike=False)
        return self._by_factor(value) if self._method == "factor" else self._by_score(value)

    def _by_factor(self, value: float) -> Judgement:
        """Judge a value by its ratio to the mean."""
        mean = math.fsum(self._values) / len(self._values)
        if mean <= 0:
            raise MetricError(
                f"SpikeGuard(method='factor') needs positive values, and their mean is {mean:.6g}: use method='zscore'"
            )
        return Judgement(value > self._threshold * mean, mean, value / mean)

    def _by_score(self, value: float) -> Judgement:
        """Judge a value by its distance from the median, in robust standard deviations."""
        median = _middle(self._sorted)
        least = max(LEAST_SPREAD * abs(median), 1e-12)
        if value - median <= self._threshold * least:  # Most values return here, without the cost of the spread.
            return Judgement(spike=False)
        spread = max(SPREAD * _middle(sorted(abs(other - median) for other in self._sorted)), least)
        score = (value - median) / spread
        return Judgement(score > self._threshold, median, score)

    @property
    def values(self) -> list[float]:
        """Values in the order in which they were added, for a checkpoint."""
        return list(self._values)

    @values.setter
    def values(self, values: Iterable[float]) -> None:
        self._values = deque(values, maxlen=self._values.maxlen)
        self._sorted = sorted(self._values)


def _middle(values: list[float]) -> float:
    """Return the median of sorted values."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
