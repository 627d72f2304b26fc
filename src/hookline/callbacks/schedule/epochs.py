"""Epochs that have begun, for what is done once in each of them."""

from __future__ import annotations

from collections.abc import Sequence


class Epochs:
    """Each epoch once, also after a rollback over the edge of one: it takes back what was done, but not the epoch.

    >>> epochs = Epochs()
    >>> list(epochs.begin(0)), list(epochs.begin(1)), list(epochs.catch_up(1))
    ([0], [1], [])
    >>> epochs.load([0, 0])  # back to a moment in epoch 0
    >>> list(epochs.catch_up(1)), list(epochs.begin(2))
    ([1], [2])
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._last: int | None = None

    def begin(self, epoch: int) -> range:
        """An epoch begins. Those that are to be done."""
        if self._first is None:
            self._first = epoch
        return self.catch_up(epoch)

    def catch_up(self, epoch: int) -> range:
        """Those that are to be done up to this one; none, if the start of none was seen."""
        start = self._first if self._last is None else self._last + 1
        if start is None:
            return range(0)
        self._last = epoch
        return range(start, epoch + 1)

    def save(self) -> list[int | None]:
        return [self._first, self._last]

    def load(self, saved: Sequence[int | None]) -> None:
        first, self._last = saved
        self._first = self._first if first is None else first  # None: back to a moment before the first epoch
