"""Count the epochs that have started, for work that is done once per epoch."""

from __future__ import annotations

from collections.abc import Sequence


class Epochs:
    """Return each epoch once, also after a rollback into an earlier epoch.

    A rollback undoes the work of an epoch, so the epoch is returned again.

    Example:
        >>> epochs = Epochs()
        >>> list(epochs.begin(0)), list(epochs.begin(1)), list(epochs.catch_up(1))
        ([0], [1], [])
        >>> epochs.load([0, 0])  # A rollback into epoch 0.
        >>> list(epochs.catch_up(1)), list(epochs.begin(2))
        ([1], [2])
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._last: int | None = None

    def begin(self, epoch: int) -> range:
        """Note that an epoch starts, and return the epochs whose work is due."""
        if self._first is None:
            self._first = epoch
        return self.catch_up(epoch)

    def catch_up(self, epoch: int) -> range:
        """Return the epochs up to this one whose work is due. Empty before the first ``begin``."""
        start = self._first if self._last is None else self._last + 1
        if start is None:
            return range(0)
        self._last = epoch
        return range(start, epoch + 1)

    def save(self) -> list[int | None]:
        """Return the state for a checkpoint."""
        return [self._first, self._last]

    def load(self, saved: Sequence[int | None]) -> None:
        """Restore a saved state."""
        first, self._last = saved
        # `None`: the rollback returned to a step before the first epoch.
        self._first = self._first if first is None else first
