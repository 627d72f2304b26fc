"""Which samples each rank gets: a loader's own batches, dealt out one by one, in the loader's own order.

The order does not depend on the number of ranks, nor does what is in a batch. Only the last group of an epoch of
training is divided anew where it does not give each rank a whole batch: then all its samples are split evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

FEWEST = 2
"""Samples that a part of a divided group has, where there are so many."""


class Share(NamedTuple):
    """Into how many shares data is split, and which of them is meant."""

    shares: int = 1
    part: int = 0


class Piece(NamedTuple):
    """What one rank reads in one round."""

    number: int
    """Of the loader's batch; of the first one of the group, if the piece is of the whole group."""
    indices: Any
    piece: int = 0
    """0 for a whole batch; else the samples are a part of a group, and which."""
    counts: bool = True
    samples: int | None = None
    known: int | None = None
    is_last: bool = False
    first: int | None = None
    then_idle: bool = False


class Stripes:
    """How batches of indices are dealt out.

    >>> batches = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    >>> [[piece.indices for piece in Stripes(Share(2, part)).deal(iter(batches))] for part in (0, 1)]
    [[[0, 1, 2], [6, 7]], [[3, 4, 5], [8, 9, 10]]]
    >>> [[p.indices for p in Stripes(Share(2, part), splits=False).deal(iter(batches[:3]))] for part in (0, 1)]
    [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [6]]]
    """

    def __init__(self, share: Share, *, counted: bool = True, divisible: bool = True, splits: bool = True) -> None:
        """``counted``: a batch is a list of indices. ``divisible``: it may be made smaller. ``splits``: in training."""
        self._share = share
        self._counted, self._divisible, self._splits = counted, counted and divisible, splits and divisible

    def deal(self, batches: Iterator[Any], start: int = 0, limit: float = math.inf) -> Iterator[Piece]:
        """The pieces of this share. The first of the batches has the number ``start``; ``limit`` ends the epoch."""
        shares, part = self._share
        if limit < math.inf:
            batches = islice(batches, max(0, int(limit) - start))
        group, number, before = list(islice(batches, shares)), start, 0
        while group:
            following = list(islice(batches, shares))
            sizes = [len(batch) if self._counted else 0 for batch in group]
            known = sum(sizes) if self._counted else None
            is_last = not following
            if is_last and self._splits and (len(group) < shares or sizes[-1] < sizes[0]):
                yield self._split(number, [index for batch in group for index in batch])
            elif part < len(group):
                samples = sizes[part] if self._counted else None
                first = before + sum(sizes[:part]) if self._counted else None
                then_idle = not is_last and part >= len(following)
                yield Piece(number + part, group[part], 0, True, samples, known, is_last, first, then_idle)
            else:
                indices = group[0][:1] if self._divisible else group[0]
                samples = len(indices) if self._counted else None
                yield Piece(number, indices, 0, False, samples, known, is_last)
            number, before, group = number + shares, before + sum(sizes), following

    def _split(self, number: int, samples: list[Any]) -> Piece:
        """All samples of the last group, evenly, at least two for each rank that gets any: a batch norm needs them.

        The last ranks are those that get none. They compute the first ones, which do not count.
        """
        (shares, part), count = self._share, len(samples)
        parts = max(1, min(shares, count // FEWEST))
        counts = part < parts
        mine = samples[part * count // parts : (part + 1) * count // parts] if counts else samples[:FEWEST]
        return Piece(number, mine, part + 1, counts, len(mine), count, True)
