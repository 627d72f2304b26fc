"""One rank's part of what all ranks take from the data at once."""

from __future__ import annotations

from typing import Any, NamedTuple


class Part(NamedTuple):
    """A batch of this rank, and what counts alone tell of those of the others."""

    batch: Any
    counts: bool = True
    """False: there was none for this rank, and this one is there only so that it does what the others do."""
    samples: int | None = None
    """How many samples this rank's batch was made of, where the data set is read by index."""
    known: int | None = None
    """The same of all ranks' batches together."""
    is_last: bool = False
    """The epoch ends after it."""
    first: int | None = None
    """In an evaluation: the place of its first sample in the loader's order, where that is known."""
    then_idle: bool = False
    """There is one more after it, which does not count on this rank."""

    @property
    def is_final(self) -> bool:
        """Whether it is the last of this rank that counts."""
        return self.counts and (self.is_last or self.then_idle)
