"""What is usual for a loss or a gradient norm, and how far from it a value is."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hookline.errors import MetricError

Method = Literal["zscore", "factor"]
SPREAD = 1.4826
"""The median distance from the median, times this, is the standard deviation of normal values."""
LEAST_SPREAD = 0.05
"""A share of the median. Values that hardly differ would make every other one a spike."""


class Judgement(NamedTuple):
    """Whether a value is a spike; what was usual, and how far the value is from it."""

    spike: bool
    usual: float | None = None
    score: float | None = None


class UsualValues:
    """The last good values. Only a value above them can be a spike; one that is not finite always is.

    ``"zscore"`` takes the distance from their median in robust standard deviations, ``"factor"`` the ratio to their
    mean. Fewer than ``warmup`` values say nothing.

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
        """A good value; the oldest is forgotten."""
        if len(self._values) == self._values.maxlen:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)

    def judge(self, value: float) -> Judgement:
        if not math.isfinite(value):
            return Judgement(spike=True)
        if len(self._values) < self._warmup:
            return Judgement(spike=False)
        return self._by_factor(value) if self._method == "factor" else self._by_score(value)

    def _by_factor(self, value: float) -> Judgement:
        mean = math.fsum(self._values) / len(self._values)
        if mean <= 0:
            raise MetricError(
                f"SpikeGuard(method='factor') needs positive values, and their mean is {mean:.6g}: use method='zscore'"
            )
        return Judgement(value > self._threshold * mean, mean, value / mean)

    def _by_score(self, value: float) -> Judgement:
        median = _middle(self._sorted)
        least = max(LEAST_SPREAD * abs(median), 1e-12)
        if value - median <= self._threshold * least:  # whatever the spread is: most values need no more than this
            return Judgement(spike=False)
        spread = max(SPREAD * _middle(sorted(abs(other - median) for other in self._sorted)), least)
        score = (value - median) / spread
        return Judgement(score > self._threshold, median, score)

    @property
    def values(self) -> list[float]:
        """In the order in which they came, for a checkpoint."""
        return list(self._values)

    @values.setter
    def values(self, values: Iterable[float]) -> None:
        self._values = deque(values, maxlen=self._values.maxlen)
        self._sorted = sorted(self._values)


def _middle(values: list[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
