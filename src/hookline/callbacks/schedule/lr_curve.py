"""Curve of a learning rate range test: rates, smoothed losses, steepest point."""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDING = 1e-9
"""Smallest fall that counts, as a fraction of the loss. A smaller fall is a rounding error."""


def rates(low: float, high: float, count: int, *, linear: bool) -> list[float]:
    """Return ``count`` learning rates from ``low`` to ``high``, both included.

    Example:
        >>> rates(0.001, 1.0, 4, linear=False), rates(0.0, 3.0, 4, linear=True)
        ([0.001, 0.01, 0.1, 1.0], [0.0, 1.0, 2.0, 3.0])
    """
    shares = [index / (count - 1) for index in range(count)]
    if linear:
        found = [low + (high - low) * share for share in shares]
    else:
        found = [math.exp(math.log(low) + (math.log(high) - math.log(low)) * share) for share in shares]
    return [low, *(float(f"{rate:.12g}") for rate in found[1:-1]), high]


class Smoothed:
    """Exponential moving average of the losses with bias correction, and its minimum."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._mean = 0.0
        self._count = 0
        self.best = math.inf

    def add(self, loss: float) -> float:
        """Add a loss and return the smoothed loss."""
        self._count += 1
        self._mean = self._beta * self._mean + (1.0 - self._beta) * loss
        value = self._mean / (1.0 - self._beta**self._count)
        if value < self.best:
            self.best = value
        return value


def steepest(losses: Sequence[float], *, skip_begin: int, skip_end: int) -> int | None:
    """Return the index at which the loss falls most, or ``None`` if it does not fall.

    Example:
        >>> steepest([3.0, 3.0, 2.0, 1.0, 1.0], skip_begin=0, skip_end=0)
        2
    """
    end = len(losses) - skip_end
    usable = [index for index in range(skip_begin, end) if math.isfinite(losses[index])]
    if len(usable) < 2:
        return None
    inside = [losses[index] for index in usable]
    slopes = [_slope(inside, place) for place in range(len(inside))]
    lowest = min(range(len(slopes)), key=slopes.__getitem__)
    falls = slopes[lowest] < -ROUNDING * max(map(abs, inside))
    return usable[lowest] if falls else None


def _slope(values: Sequence[float], place: int) -> float:
    """Return the central difference, or the difference to the neighbor at both ends."""
    if place == 0:
        return values[1] - values[0]
    if place == len(values) - 1:
        return values[-1] - values[-2]
    return (values[place + 1] - values[place - 1]) / 2
