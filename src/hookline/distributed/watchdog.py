"""``Watchdog``: a thread that ends its rank if another rank has failed or this rank hangs.

Without it, a rank would wait forever for a rank that is gone or hangs. The watchdog wakes a rank that waits in a
collective, and the rank ends with an error as usual. Python cannot interrupt code that hangs elsewhere, so the watchdog
ends that process: it prints the stacks, and exits with a code after which torchrun starts the process again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from hookline.distributed.exits import BodyExits
from hookline.distributed.group import Group
from hookline.distributed.stacks import end_process, is_in_collective, place_of, stack_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOKS_EVERY: Final = 0.5
"""Seconds between two checks."""
LOOKS_OF_ALL: Final = 1000
"""Limit for the checks per second of all ranks together: one process hosts the store."""
PAUSED: Final = 3
"""Intervals between two checks after which the process counts as paused, not only as slow."""
PAUSED_S: Final = 1.0
"""The same limit in seconds, for short intervals: a busy machine delays the thread."""
GRACE: Final = 5.0
"""Seconds in which a rank must begin to end after another rank has failed."""
HUNG: Final = 75
"""Exit code of a rank that hangs: ``EX_TEMPFAIL``, a temporary failure."""


class Watchdog:
    """End this rank if it makes no progress, or if another rank has failed.

    A rank makes progress if ``beat``, which the loop increments, or the result of ``progress`` changes. A rank that
    waits for other ranks ends only if all ranks wait: as long as one rank computes, the others wait for it.

    Args:
        group: The processes of the run.
        hang_after: Limit for a rank that makes no progress.
        timeout: The same limit before the end of the first step, and inside ``patient``.
        progress: Function whose result changes as long as the rank computes.
        exits: The exits of a custom loop, which the watchdog compares between ranks.
    """

    def __init__(
        self,
        group: Group,
        *,
        hang_after: timedelta,
        timeout: timedelta,
        progress: Callable[[], object] = lambda: None,
        exits: BodyExits | None = None,
    ) -> None:
        self.beat = 0
        self._group, self._progress, self._exits = group, progress, exits
        self._in_collective_since: float | None = None
        # A separate connection, because the main thread may be waiting on its connection.
        self._store: Store = group.store.clone()  # type: ignore[attr-defined]
        self._every = max(LOOKS_EVERY, group.size / LOOKS_OF_ALL)
        self._short, self._long = hang_after.total_seconds(), timeout.total_seconds()
        self._patient = 1  # Not zero until the first step (or batch) is done.
        self._main = threading.get_ident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hookline-watchdog", daemon=True)
        self._failed_at: float | None = None
        self._waits = False  # True if the store says that this rank waits.

    def count_beat(self) -> None:
        """This rank makes progress."""
        self.beat += 1

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(GRACE)  # A request to the store may be under way.

    def stepped(self) -> None:
        """Apply ``hang_after`` from now on, after the first step or batch.

        The first one may take much longer than the others.
        """
        self._patient = 0 if self._patient == 1 else self._patient

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Apply ``timeout`` to code that may take long: a save, the end of a run."""
        self._patient += 2
        try:
            yield
        finally:
            self._patient -= 2
            self.beat += 1

    # -- in the thread -------------------------------------------------------------------------

    def _watch(self) -> None:
        seen, since = self._seen(), time.monotonic()
        for now, was_paused in looks(self._end, self._every):
            if was_paused:
                since, self._failed_at = now, None if self._failed_at is None else now
            if self._group.broken:
                self._watch_end()
                return
            if self._failed_at is not None or self._look(now):
                if now - (self._failed_at or now) > GRACE:
                    end_process(f"rank {self._group.rank} ends, because {self._group.failure(self._store)}", code=1)
                continue
            if self._exits is not None:
                self._look_for_exits(self._exits, now)
            if (found := self._seen()) != seen:
                seen, since = found, now
                self._write_waiting(waits=False)
            elif now - since > (limit := self._long if self._patient else self._short):
                self._stuck(limit)

    def _watch_end(self) -> None:
        """End the process if its cleanup after an error takes longer than ``timeout``."""
        since = time.monotonic()
        for now, was_paused in looks(self._end, self._every):
            if was_paused:
                since = now
            elif now - since > self._long:
                where = place_of(stack_of(self._main))
                words = f"has not ended {self._long:g} s after an error (the limit is timeout=)"
                self._end_hung(f"rank {self._group.rank} {words}: it is in {where}")

    def _seen(self) -> object:
        return self.beat, self._progress()

    def _look(self, now: float) -> bool:
        """Wake this rank if another rank has failed. Return True in that case."""
        if self._group.failure(self._store) is None:
            return False
        self._failed_at = now
        self._group.wake()
        return True

    def _look_for_exits(self, exits: BodyExits, now: float) -> None:
        """Accuse a rank that has left the body of its loop, if this rank continues or waits for it."""
        if is_in_collective(stack_of(self._main)):
            self._in_collective_since = self._in_collective_since or now
        else:
            self._in_collective_since = None
        try:
            found = exits.find_left_behind(self._store, now, self._in_collective_since)
        except RuntimeError:  # The next check finds that the store is gone.
            return
        if found is not None:
            self._group.accuse(*found, self._store)

    def _stuck(self, limit: float) -> None:
        """End this rank if it hangs, or if all ranks wait. Otherwise it waits for a rank that hangs."""
        rank, stack = self._group.rank, stack_of(self._main)
        where, waits = place_of(stack), is_in_collective(stack)
        words = f"has made no progress for {limit:g} s (the limits are hang_after= and timeout=)"
        if not waits:
            self._group.accuse(rank, f"{words}: it is in {where}", self._store)
            self._end_hung(f"rank {rank} {words}: it is in {where}")
        elif self._write_waiting(waits=True, where=where) >= self._group.size:
            told = "; ".join(f"rank {other} in {its}" for other, its in self._places())
            self._end_hung(f"rank {rank} {words}: all ranks wait for one another: {told}")

    def _write_waiting(self, *, waits: bool, where: str = "") -> int:
        """Write to the store whether and where this rank waits. Return how many ranks wait."""
        try:
            if waits == self._waits:
                return self._store.add("waiting", 0) if waits else 0
            self._waits = waits
            if waits:
                self._store.set(f"waiting/{self._group.rank}", json.dumps(where))
            return self._store.add("waiting", 1 if waits else -1)
        except RuntimeError:  # The next check finds that the store is gone.
            return 0

    def _places(self) -> list[tuple[int, str]]:
        try:
            return [(rank, json.loads(self._store.get(f"waiting/{rank}"))) for rank in range(self._group.size)]
        except RuntimeError:
            return []

    def _end_hung(self, words: str) -> None:
        self._group.will_not_come(self._store)
        time.sleep(2 * self._every)  # The store may end with this process, so the other ranks read the reason now.
        end_process(words, code=HUNG)


def looks(end: threading.Event, every: float) -> Iterator[tuple[float, bool]]:
    """Yield the time of each check, and whether the process was paused since the last check.

    If the process was paused (SIGSTOP, a suspended job or machine), the thread slept far longer than ``every``. The
    main thread was paused as well, so the caller must start its measurement of time again.

    Args:
        end: Ends the iteration.
        every: Seconds between two checks.
    """
    before = time.monotonic()
    while not end.wait(every):
        now = time.monotonic()
        yield now, now - before > max(PAUSED * every, PAUSED_S)
        before = now
