"""A batch of one rank, with facts about the batches of the other ranks."""

from __future__ import annotations

from typing import Any, NamedTuple


class ShardBatch(NamedTuple):
    """A batch of this rank, with facts about the batches of the other ranks in the same round."""

    batch: Any
    counts: bool = True
    """False for a padding batch: only other ranks have data in this round."""
    samples: int | None = None
    """Number of samples in the batch of this rank, if the data set is read by index."""
    known: int | None = None
    """Number of samples in the batches of all ranks, if the data set is read by index."""
    is_last: bool = False
    """True if the epoch ends after this batch."""
    first: int | None = None
    """In an evaluation: position of the first sample in the order of the loader, if it is known."""
    then_idle: bool = False
    """True if the next batch of this rank is padding."""

    @property
    def is_final(self) -> bool:
        """True if this is the last batch of this rank that is not padding."""
        return self.counts and (self.is_last or self.then_idle)
