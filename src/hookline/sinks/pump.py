"""``Pump``: the thread and the bounded queue between the loop and one sink."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from hookline.records import ImageRow, Record
from hookline.sinks.sink import RunInfo, Sink

MOST = 10_000
"""So many rows wait for a sink; then the oldest are dropped. A picture counts as one row per 4 KB."""
BATCH = 1_000
"""So many rows are written at once."""
PAUSES = (0.5, 2.0, 8.0)
"""Seconds until rows that could not be written are tried again; after the last try they are lost."""
WAIT = 5.0
"""Seconds that the end of a run waits for a sink."""


@dataclass(frozen=True, slots=True)
class SinkReport:
    """How one sink fared."""

    sink: str
    written: int
    dropped: int
    """Rows that came faster than the sink took them, or that it could not write."""
    failures: int
    """How often it raised."""
    error: str = ""
    """The last thing that it raised."""
    hung: bool = False
    """It had not come to an end when the run did, and was left."""

    @property
    def is_well(self) -> bool:
        return not (self.dropped or self.failures or self.hung)

    def __str__(self) -> str:
        parts = [f"{self.written:,} rows written"]
        parts += [f"{self.dropped:,} dropped"] if self.dropped else []
        parts += [f"failed {self.failures} time(s), last with {self.error}"] if self.failures else []
        parts += [f"was still busy {WAIT:g} s after the end and was left"] if self.hung else []
        return f"{self.sink}: {', '.join(parts)}"


class Pump:
    """Hands rows to a sink in a thread of its own. Nothing here waits for the sink but ``close``, and that not long.

    The newest rows win: when the queue is full, the oldest are dropped and counted.
    """

    def __init__(self, name: str, sink: Sink, *, most: int = MOST, pauses: Sequence[float] = PAUSES) -> None:
        self._name, self._sink = name, sink
        self._most, self._pauses = most, tuple(pauses)
        self._queue: deque[Record] = deque()
        self._size = 0  # what is in the queue, by weight
        self._changed = threading.Condition()
        self._closing = False
        self._written = self._dropped = self._failures = 0
        self._error = ""
        self._told = 0
        self._thread: threading.Thread | None = None

    def start(self, info: RunInfo) -> None:
        """A daemon: a sink that hangs must not keep the process."""
        name = f"hookline sink {self._name}"
        self._thread = threading.Thread(target=self._work, args=(info,), name=name, daemon=True)
        self._thread.start()

    def put(self, records: Sequence[Record]) -> None:
        """Take rows. Never waits for the sink."""
        with self._changed:
            self._queue.extend(records)
            self._size += sum(map(_weight, records))
            while self._size > self._most and len(self._queue) > 1:
                self._size -= _weight(self._queue.popleft())
                self._dropped += 1
            self._changed.notify()

    def trouble(self) -> str | None:
        """What went wrong for the first time since this was last asked; ``None`` if nothing did, or it is known."""
        if self._told or not (self._failures or self._dropped):
            return None
        self._told = 1
        return str(self.report())

    def close(self, wait: float = WAIT) -> SinkReport:
        """Let the sink come to its end, or leave it after ``wait`` seconds; how it fared."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(wait)
        return self.report()

    def report(self) -> SinkReport:
        hung = self._closing and self._thread is not None and self._thread.is_alive()
        waiting = len(self._queue) if hung else 0
        return SinkReport(self._name, self._written, self._dropped + waiting, self._failures, self._error, hung)

    # -- in the thread -------------------------------------------------------------------------

    def _work(self, info: RunInfo) -> None:
        start = partial(self._sink.start, info)
        started = self._try(start)
        while batch := self._next():
            if not started:
                started = self._try(start)
            if started and self._try(partial(self._sink.write, batch)):
                self._written += len(batch)
            else:
                self._dropped += len(batch)
            if started and not self._queue:
                self._once(self._sink.flush)
        if started:
            self._once(self._sink.close)

    def _next(self) -> list[Record]:
        """What has come together; nothing at the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            count = min(BATCH, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
            self._size -= sum(map(_weight, batch))
            return batch

    def _try(self, act: Callable[[], None]) -> bool:
        """Do it, again after a pause if it raises; whether it was done."""
        for pause in (*self._pauses, None):
            if self._once(act):
                return True
            if pause is None or self._is_over(pause):
                return False
        return False

    def _once(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:
            self._failures += 1
            self._error = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return False
        return True

    def _is_over(self, pause: float) -> bool:
        """Wait; whether the run came to its end meanwhile, so that there is no time for another try."""
        end = monotonic() + pause
        with self._changed:
            while not self._closing and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            return self._closing


def _weight(record: Record) -> int:
    return 1 + len(record.png) // 4096 if isinstance(record, ImageRow) else 1
