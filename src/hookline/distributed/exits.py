"""Exits from the body of a custom loop, by ``break`` or ``return``, on all ranks together."""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from hookline.distributed.group import Group
from hookline.errors import RankError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL_INTERVAL_S: Final = 0.02
STUCK_AFTER_S: Final = 5.0
"""A rank that is in a collective for this long, in a batch that another rank has left, waits for that rank."""


class BodyExits:
    """Count the batches whose body has ended, and tell the other ranks when the body is left.

    A rank that leaves writes its count to the store and waits. The watchdog of a rank that continues finds that its
    own count is higher, or that it waits in a collective of the batch that was left. So a step sends nothing.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ended = 0
        self._number = 0  # of exits that all ranks have made together
        self._left: deque[int] = deque()  # the count at each exit of this rank that is not compared yet
        self._seen: dict[str, float] = {}  # when this rank found the exit of another rank

    def body_ended(self) -> None:
        """Note that the body has requested the next batch of a training, an evaluation or a prediction."""
        self._ended += 1

    def body_left(self) -> None:
        """Note that the body was left. ``leave`` follows with the next loop call, when other bodies may have ended."""
        self._left.append(self._ended)

    def leave(self, step: int, *, timeout: timedelta) -> None:
        """Wait until all ranks have left the body in this batch. All ranks must call it.

        Args:
            step: The step, for the error.
            timeout: How long to wait.

        Raises:
            RankError: If another rank continues, or has left the body in another batch.
        """
        group, store = self._group, self._group.store
        keys = [self._key(rank) for rank in range(group.size)]
        here = [self._left[0], step]
        store.set(keys[group.rank], json.dumps(here))
        store.set(self._any_key, "")
        until = time.monotonic() + timeout.total_seconds()
        while not store.check(keys):
            group.check(also_own=True)
            if time.monotonic() > until:
                raise self._error(step, f"another rank has not left it for {timeout}")
            time.sleep(POLL_INTERVAL_S)
        for rank, key in enumerate(keys):
            its = json.loads(store.get(key))
            if its != here:
                where = "in the same batch" if its[0] == here[0] else "in another batch"
                raise self._error(step, f"rank {rank} left it at step {its[1]}, {where}")
        self._number += 1
        self._left.popleft()

    def find_left_behind(self, store: Store, now: float, in_collective_since: float | None) -> tuple[int, str] | None:
        """Return the rank that has left a body that this rank continues, and the accusation.

        Args:
            store: The connection of the watchdog's thread to the store.
            now: The time, as ``time.monotonic`` gives it.
            in_collective_since: When the main thread was first seen in the collective that it is in.
        """
        left = list(self._left)
        # Read before the number: the main thread counts an exit before it ends another body.
        ended = left[0] if left else self._ended
        if not store.check([self._any_key]):  # one request per look, however many ranks there are
            return None
        for rank in range(self._group.size):
            key = self._key(rank)
            if rank == self._group.rank or not store.check([key]):
                continue
            its_ended, step = json.loads(store.get(key))
            since = max(self._seen.setdefault(key, now), in_collective_since or now)
            is_stuck = ended == its_ended and not left and now - since > STUCK_AFTER_S
            if ended > its_ended or is_stuck:
                return rank, _words(step, f"rank {self._group.rank} continues")
        return None

    def _error(self, step: int, but: str) -> RankError:
        return RankError(f"rank {self._group.rank} {_words(step, but)}")

    @property
    def _any_key(self) -> str:
        return f"left/{self._number}"

    def _key(self, rank: int) -> str:
        return f"left/{self._number}/{rank}"


def _words(step: int, but: str) -> str:
    return (
        f"left the body of its loop at step {step}, and {but}: leave it in the same batch on all ranks, or call "
        f"run.stop() on one rank"
    )
