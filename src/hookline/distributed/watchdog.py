"""The watchdog: a thread on each rank that ends it when another has failed or when it makes no progress itself.

A rank that waits for one that is gone, or that sleeps, waits for ever otherwise. What waits in a collective is woken,
and ends with an error as usual. Nothing in Python can call back what hangs elsewhere, so that process ends: with its
stacks on the screen, and a code that lets torchrun start it again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from hookline.distributed.group import Group
from hookline.distributed.stacks import end_process, is_in_collective, place_of, stack_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOKS_EVERY: Final = 0.5
"""Seconds."""
LOOKS_OF_ALL: Final = 1000
"""A second, all ranks together: one process keeps the store for all of them."""
PAUSED: Final = 3
"""Intervals between two looks after which the process was paused, and was not just slow."""
PAUSED_S: Final = 1.0
"""The same in seconds: a busy machine delays a thread that looks more often."""
GRACE: Final = 5.0
"""Seconds that a rank has to begin to end by itself after another has failed."""
HUNG: Final = 75
"""The exit code of a rank that hangs: a failure that may pass, as ``sysexits.h`` has it."""


class Watchdog:
    """Where neither ``beat``, which the loop counts up, nor ``progress`` changes for too long, the rank hangs.

    One that waits for the others hangs only if all ranks do: as long as one of them is at work, it may take its time.
    """

    def __init__(
        self,
        group: Group,
        *,
        hang_after: timedelta,
        timeout: timedelta,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self.beat = 0
        self._group, self._progress = group, progress
        # A connection of its own: the main thread may be waiting on the other.
        self._store: Store = group.store.clone()  # type: ignore[attr-defined]
        self._every = max(LOOKS_EVERY, group.size / LOOKS_OF_ALL)
        self._short, self._long = hang_after.total_seconds(), timeout.total_seconds()
        self._patient = 1  # until the first step is done, or the first batch where there are no steps
        self._main = threading.get_ident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hookline-watchdog", daemon=True)
        self._failed_at: float | None = None
        self._waits = False  # whether the others have been told that this rank waits for them

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The run is over."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(GRACE)  # it may be in the middle of a request to the store

    def stepped(self) -> None:
        """The first step is done, or the first batch of what has no steps: from now on things take what they took."""
        self._patient = 0 if self._patient == 1 else self._patient

    @contextmanager
    def patient(self) -> Iterator[None]:
        """What may take long: a save, the end of a run."""
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
            if (found := self._seen()) != seen:
                seen, since = found, now
                self._tell(waits=False)
            elif now - since > (limit := self._long if self._patient else self._short):
                self._stuck(limit)

    def _watch_end(self) -> None:
        """It is ending already, and what it puts back may take its time, but not for ever."""
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
        """Whether another rank has failed; then this one is woken, if it waits in a collective."""
        if self._group.failure(self._store) is None:
            return False
        self._failed_at = now
        self._group.wake()
        return True

    def _stuck(self, limit: float) -> None:
        """No progress: this rank hangs, or waits for one that does; or all wait for one another."""
        rank, stack = self._group.rank, stack_of(self._main)
        where, waits = place_of(stack), is_in_collective(stack)
        words = f"has made no progress for {limit:g} s (the limits are hang_after= and timeout=)"
        if not waits:
            self._group.accuse(rank, f"{words}: it is in {where}", self._store)
            self._end_hung(f"rank {rank} {words}: it is in {where}")
        elif self._tell(waits=True, where=where) >= self._group.size:
            told = "; ".join(f"rank {other} in {its}" for other, its in self._places())
            self._end_hung(f"rank {rank} {words}: all ranks wait for one another: {told}")

    def _tell(self, *, waits: bool, where: str = "") -> int:
        """Where this rank waits, or that it does no more; how many ranks wait."""
        try:
            if waits == self._waits:
                return self._store.add("waiting", 0) if waits else 0
            self._waits = waits
            if waits:
                self._store.set(f"waiting/{self._group.rank}", json.dumps(where))
            return self._store.add("waiting", 1 if waits else -1)
        except RuntimeError:  # the store is gone, which the next look finds
            return 0

    def _places(self) -> list[tuple[int, str]]:
        try:
            return [(rank, json.loads(self._store.get(f"waiting/{rank}"))) for rank in range(self._group.size)]
        except RuntimeError:
            return []

    def _end_hung(self, words: str) -> None:
        self._group.will_not_come(self._store)
        time.sleep(2 * self._every)  # the others read why, before the store may be gone with this process
        end_process(words, code=HUNG)


def looks(end: threading.Event, every: float) -> Iterator[tuple[float, bool]]:
    """In a thread, until ``end`` is set: the time, and whether the process was paused since the last look.

    The thread then slept far longer than ``every``: the process was stopped (SIGSTOP, a suspended job or machine).
    Such time says nothing about what the main thread does, so a measurement of it starts again.
    """
    before = time.monotonic()
    while not end.wait(every):
        now = time.monotonic()
        yield now, now - before > max(PAUSED * every, PAUSED_S)
        before = now
