"""Where each rank is, for the one that has left: whether the others leave at the same place, or go on without it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from hookline.distributed.group import Group

LOOKS_EVERY: Final = 0.02
"""Seconds."""


class Places:
    """Counts what all ranks do alike, and tells it before anything in which this rank would wait for one that has left.

    That is one message to the store, which nobody answers, for each.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._here = 0  # twice the number of windows, votes and evaluations begun, and one more inside of a window

    def begins(self) -> None:
        """By all: a window, an evaluation or a vote at an edge."""
        self._move(self._here // 2 * 2 + 2)

    def computes(self) -> None:
        """By all: what all ranks compute together in this window, or its end; on some more often than on others."""
        self._move(self._here | 1)

    def _move(self, here: int) -> None:
        if here != self._here:
            self._here = here
            self._group.store.set(f"place/{self._group.rank}", str(here))

    def have_all_left(self, timeout: timedelta) -> bool:
        """By one that leaves here: whether all do. Others may be late; it ends where one goes on, or has failed."""
        store, left = self._group.store, f"left/{self._here}"
        store.add(left, 1)
        until = time.monotonic() + timeout.total_seconds()
        while store.add(left, 0) < self._group.size:
            if self._has_one_gone_on():
                # The last rank to leave may have counted itself and moved on since the count above.
                return store.add(left, 0) == self._group.size
            if time.monotonic() > until:
                return False
            self._group.check()
            time.sleep(LOOKS_EVERY)
        return True

    def _has_one_gone_on(self) -> bool:
        keys = [f"place/{rank}" for rank in range(self._group.size)]
        return any(int(self._group.store.get(key)) > self._here for key in keys if self._group.store.check([key]))
