"""Reduce the number of points of a curve without losing extremes or gaps."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

POINTS = 2_000
"""More points than a chart has pixels."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The points of a series that are drawn."""

    places: list[int]
    """Indices of the values."""
    means: list[tuple[int, float]]
    """Middle index and mean of the finite values per bucket, for a smooth line.

    Empty if all values are drawn.
    """


def downsample(values: Sequence[float], limit: int = POINTS) -> Sample:
    """Return at most ``limit`` values: the first, lowest, highest and last of each bucket.

    The first NaN and the first infinity of each sign in a bucket are also kept.

    >>> downsample([5.0, 1.0, 2.0, 9.0, 3.0, 3.0, 3.0, 3.0, 3.0], limit=4).places
    [0, 1, 3, 8]
    """
    if len(values) <= limit:
        return Sample(list(range(len(values))), [])
    values = values if isinstance(values, array) else array("d", values)
    a_bucket = 4 if all(map(math.isfinite, values)) else 7
    count = max(1, limit // a_bucket)
    places: list[int] = []
    means: list[tuple[int, float]] = []
    for bucket in range(count):
        start, end = len(values) * bucket // count, len(values) * (bucket + 1) // count
        chunk = values[start:end]
        places += [start + place for place in _telling(chunk)]
        finite = chunk if a_bucket == 4 else [value for value in chunk if math.isfinite(value)]
        if finite:
            means.append(((start + end - 1) // 2, _mean(finite)))
    return Sample(places, means)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def _telling(chunk: Sequence[float]) -> list[int]:
    """Return the indices of the values that a bucket must keep."""
    found = {0, len(chunk) - 1}
    finite = chunk
    if not all(map(math.isfinite, chunk)):
        finite = [value for value in chunk if math.isfinite(value)]
        for odd in (math.isnan, math.inf.__eq__, (-math.inf).__eq__):
            found.update(islice((place for place, value in enumerate(chunk) if odd(value)), 1))
    if finite:
        found |= {chunk.index(min(finite)), chunk.index(max(finite))}
    return sorted(found)
