"""Select the batches of each rank: batches of the loader in turn, in its order.

The order and the contents of batches do not depend on the number of ranks. One exception is the last group of batches
of a training epoch: if it does not have a full batch for each rank, all its samples are split evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

FEWEST = 2
"""Smallest number of samples of a rank in a split group, if the group has enough samples."""


class Share(NamedTuple):
    """The number of shards of the data, and the index of one of them."""

    shares: int = 1
    part: int = 0


class Piece(NamedTuple):
    """The samples that one rank reads in one round. See ``ShardBatch`` for the other fields."""

    number: int
    """Number of the batch in the loader. In a split group, the number of its first batch."""
    indices: Any
    piece: int = 0
    """0 for a batch of the loader. In a split group, the number of the part from 1 on."""
    counts: bool = True
    samples: int | None = None
    known: int | None = None
    is_last: bool = False
    first: int | None = None
    then_idle: bool = False


class Stripes:
    """Select the batches of one shard.

    Args:
        share: The shard.
        counted: True if a batch is a list of indices.
        divisible: True if a batch may be made smaller.
        splits: True to split the last group, in training.

    >>> batches = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    >>> [[piece.indices for piece in Stripes(Share(2, part)).deal(iter(batches))] for part in (0, 1)]
    [[[0, 1, 2], [6, 7]], [[3, 4, 5], [8, 9, 10]]]
    >>> [[p.indices for p in Stripes(Share(2, part), splits=False).deal(iter(batches[:3]))] for part in (0, 1)]
    [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [6]]]
    """

    def __init__(self, share: Share, *, counted: bool = True, divisible: bool = True, splits: bool = True) -> None:
        self._share = share
        self._counted, self._divisible, self._splits = counted, counted and divisible, splits and divisible

    def deal(self, batches: Iterator[Any], start: int = 0, limit: float = math.inf) -> Iterator[Piece]:
        """Iterate over the batches of this shard.

        Args:
            batches: The batches of all shards.
            start: The number of the first of these batches.
            limit: The number of the batch at which the epoch ends.
        """
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
        """Return this shard's part of the last group, whose samples are split evenly.

        Each part has at least two samples, which batch norm needs. If there are not enough for all ranks, the last
        ranks get the first samples as padding.
        """
        (shares, part), count = self._share, len(samples)
        parts = max(1, min(shares, count // FEWEST))
        counts = part < parts
        mine = samples[part * count // parts : (part + 1) * count // parts] if counts else samples[:FEWEST]
        return Piece(number, mine, part + 1, counts, len(mine), count, True)
