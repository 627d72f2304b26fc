"""``Kept``: an evenly spaced sample of many items, which always includes the newest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Accept any number of items and keep at most ``limit`` of them, evenly spaced.

    The first and the newest item are always kept.

    Args:
        limit: Maximum number of items to keep.

    Example:
        >>> kept = Kept[int](4)
        >>> for number in range(10):
        ...     kept.add(number)
        >>> list(kept), kept.count
        ([0, 4, 8, 9], 10)
    """

    __slots__ = ("_every", "_items", "_newest", "count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        """Number of items that were added."""
        self._items: list[T] = []
        self._every = 1
        self._newest: list[T] = []

    def add(self, item: T) -> None:
        self._newest = [item]
        if self.count % self._every == 0:
            self._items.append(item)
            if len(self._items) >= self.limit:
                self._items = self._items[::2]
                self._every *= 2
        self.count += 1

    def __iter__(self) -> Iterator[T]:
        yield from self._items
        if self._newest and (not self._items or self._items[-1] is not self._newest[0]):
            yield self._newest[0]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def newest(self) -> T:
        return self._newest[0]
