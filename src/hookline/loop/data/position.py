"""The position in an epoch, in batches of the loader, for any number of processes."""

from __future__ import annotations

import math
from typing import NamedTuple


class Position(NamedTuple):
    """A position in an epoch.

    All ranks together have read ``taken`` batches of the loader, when each rank has had ``batch`` batches. After it,
    each round takes ``stride`` batches of the loader, one for each shard of the data. So one rank or four ranks can
    continue an epoch that two ranks have started.

    >>> before = Position(epoch=0)
    >>> saved = before.taken_after(3, stride=2)  # two ranks, three batches each
    >>> later = Position(epoch=0, batch=3, taken=saved)
    >>> saved, later.taken_after(5, stride=1), later.length(total=10, stride=1), later.length(total=10, stride=4)
    (6, 8, 7, 4)
    """

    epoch: int = 0
    batch: int = 0
    taken: int = 0

    def in_epoch(self, epoch: int) -> Position:
        """Return this position if it is in that epoch, else the start of that epoch."""
        return self if epoch == self.epoch else Position(epoch)

    def taken_after(self, batch: int, stride: int) -> int:
        """Return how many batches of the loader are read after ``batch`` batches of each rank."""
        return self.taken + (batch - self.batch) * stride

    def length(self, total: float, stride: int) -> float:
        """Return the number of batches of each rank in an epoch of ``total`` batches of the loader.

        >>> Position().length(float("inf"), stride=2)
        inf
        """
        left = max(0, total - self.taken)
        return left if math.isinf(left) else self.batch + -(-left // stride)
