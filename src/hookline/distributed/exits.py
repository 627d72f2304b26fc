"""Exits from the body of a custom loop, by ``break`` or ``return``, on all ranks together."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from hookline.distributed.group import Group
from hookline.errors import RankError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

POLL_INTERVAL_S: Final = 0.02
STUCK_AFTER_S: Final = 5.0
"""A rank that is in a collective for this long, in a batch that another rank has left before its backward, is stuck."""


class BodyExits:
    """Count the batches whose body has ended, and tell the other ranks when the body is left.

    A rank that leaves writes its count to the store and waits. The watchdog of a rank that continues finds that its
    own count is higher. So a step sends nothing, and a ``break`` on one rank alone is found within a second.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ended = 0
        self._number = 0  # of exits that all ranks have made together

    def body_ended(self) -> None:
        """By all: the body has asked for the next batch of a training, an evaluation or a prediction."""
        self._ended += 1

    def leave(self, step: int, *, synced: bool, timeout: timedelta) -> None:
        """By all: wait until all ranks have left the body in this batch.

        Args:
            step: The step, for the error.
            synced: Whether the backward that averages the gradients of this batch is done.
            timeout: How long to wait.

        Raises:
            RankError: If another rank continues, or has left the body in another batch.
        """
        group, store = self._group, self._group.store
        keys = [self._key(rank) for rank in range(group.size)]
        store.set(keys[group.rank], json.dumps([self._ended, step, synced]))
        until = time.monotonic() + timeout.total_seconds()
        while not store.check(keys):
            group.check(also_own=True)
            if time.monotonic() > until:
                raise self._error(step, f"another rank has not left it for {timeout}")
            time.sleep(POLL_INTERVAL_S)
        for rank, key in enumerate(keys):
            ended, its_step, _ = json.loads(store.get(key))
            if ended != self._ended:
                raise self._error(step, f"rank {rank} left it at step {its_step}, in another batch")
        self._number += 1

    def find_left_behind(self, store: Store, seconds_in_collective: float) -> tuple[int, str] | None:
        """Return the rank that has left a body that this rank continues, and the accusation.

        Args:
            store: The connection of the watchdog's thread to the store.
            seconds_in_collective: How long the main thread has been in a collective.
        """
        ended = self._ended  # read first: the main thread counts an exit before it ends another body
        for rank in range(self._group.size):
            key = self._key(rank)
            if rank == self._group.rank or not store.check([key]):
                continue
            its_ended, step, synced = json.loads(store.get(key))
            is_stuck = ended == its_ended and not synced and seconds_in_collective > STUCK_AFTER_S
            if ended > its_ended or is_stuck:
                return rank, _words(step, f"rank {self._group.rank} continues")
        return None

    def _error(self, step: int, but: str) -> RankError:
        return RankError(f"rank {self._group.rank} {_words(step, but)}")

    def _key(self, rank: int) -> str:
        return f"left/{self._number}/{rank}"


def _words(step: int, but: str) -> str:
    return (
        f"left the body of its loop at step {step}, and {but}: leave it in the same batch on all ranks, or call "
        f"run.stop() on one rank"
    )
