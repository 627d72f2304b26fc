"""Where in an epoch the data is, in batches of the loader: what a checkpoint says to any number of processes."""

from __future__ import annotations

import math
from typing import NamedTuple


class Position(NamedTuple):
    """When each rank had had ``batch`` batches of this epoch, ``taken`` of the loader's were behind all of them.

    From there on each round takes ``stride`` batches of the loader, one for each share of the data. So an epoch that
    was begun by two ranks can be gone on with by one, or by four.

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
        """This one if it is of that epoch, else the beginning of that epoch."""
        return self if epoch == self.epoch else Position(epoch)

    def taken_after(self, batch: int, stride: int) -> int:
        """How many of the loader's batches are taken when each rank has had so many."""
        return self.taken + (batch - self.batch) * stride

    def length(self, total: float, stride: int) -> float:
        """How many batches each rank has in the epoch, those before the position included, if the loader has so many.

        >>> Position().length(float("inf"), stride=2)
        inf
        """
        left = max(0, total - self.taken)
        return left if math.isinf(left) else self.batch + -(-left // stride)
