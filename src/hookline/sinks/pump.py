"""``Pump``: the thread and the bounded queue between the loop and one sink."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from hookline.errors import words_of
from hookline.records import ImageRow, MetricRow, Record, TableRow, TextRow
from hookline.records.redact import redact_text
from hookline.sinks.sink import RunInfo, Sink

MOST = 10_000
"""So many rows wait for a sink; then the oldest are dropped. What is large counts as one row per 4 KB."""
BATCH = 1_000
"""So many rows are written at once."""
PAUSES = (0.5, 2.0, 8.0)
"""Seconds until rows that could not be written are tried again; after the last try they are lost."""
WAIT = 5.0
"""Seconds that the end of a run waits for a sink: those that its call has taken before the end count."""
SHARE = 0.02
"""Of the run's time: that much is waited also for one that has had its seconds before the end."""
START_WAITS = 3
"""So many times longer for one that has not started yet; once it has, it gets ``WAIT`` within that."""
LOOK = 0.05
"""Seconds between two looks whether it has started meanwhile."""


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
        parts += ["was still busy after the end and was left"] if self.hung else []
        return f"{self.sink}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Between two rows: the run has gone back, and the sink takes it up anew."""

    info: RunInfo


class Pump:
    """Hands rows to a sink in a thread of its own. Nothing here waits for the sink but ``close``, and that not long.

    The newest rows win: when the queue is full, the oldest are dropped and counted.
    """

    def __init__(self, name: str, sink: Sink, *, most: int = MOST, pauses: Sequence[float] = PAUSES) -> None:
        self.name, self._sink = name, sink
        self._most, self._pauses = most, tuple(pauses)
        self._queue: deque[tuple[Record | Restart, int]] = deque()  # each with its weight
        self._size = 0  # what is in the queue, by weight
        self._in_hand = 0  # rows that the sink has been given and is not done with
        self._changed = threading.Condition()
        self._closing, self._ended = False, 0.0
        self._since = 0.0  # when the run began
        self._called: float | None = None  # when the call began that the sink is in
        self._longest = 0.0  # of its calls that ended well
        self._written = self._dropped = self._failures = 0
        self._error = ""
        self._told = 0
        self._started, self._began = False, 0.0  # and when it had
        self._thread: threading.Thread | None = None

    def start(self, info: RunInfo) -> None:
        """A daemon: a sink that hangs must not keep the process."""
        name, self._since = f"hookline sink {self.name}", monotonic()
        self._thread = threading.Thread(target=self._work, args=(info,), name=name, daemon=True)
        self._thread.start()

    def put(self, records: Sequence[Record]) -> None:
        """Take rows. Never waits for the sink."""
        weighed = [(record, _weight(record)) for record in records]
        with self._changed:
            self._queue.extend(weighed)
            self._size += sum(weight for _, weight in weighed)
            while self._size > self._most and len(self._queue) > 1:
                oldest = 1 if isinstance(self._queue[0][0], Restart) else 0
                self._size -= self._queue[oldest][1]
                del self._queue[oldest]
                self._dropped += 1
            self._changed.notify()

    def restart(self, info: RunInfo) -> None:
        """After what is in the queue: rows were taken back, and the sink goes on from what is left."""
        with self._changed:
            self._queue.append((Restart(info), 0))
            self._changed.notify()

    def trouble(self) -> str | None:
        """What went wrong for the first time since this was last asked; ``None`` if nothing did, or it is known."""
        if self._told or not (self._failures or self._dropped):
            return None
        self._told = 1
        return str(self.report())

    def end(self) -> None:
        """Nothing more follows: the sink writes what is left, and closes."""
        with self._changed:
            if not self._closing:
                self._closing, self._ended = True, monotonic()
            self._changed.notify()

    def close(self, wait: float = WAIT) -> SinkReport:
        """Let the sink come to its end, or leave it ``wait`` seconds after it was told to; how it fared."""
        self.end()
        while self._thread is not None and self.is_busy and (left := self._leave_at(wait) - monotonic()) > 0:
            self._thread.join(min(left, LOOK))
        return self.report()

    def _leave_at(self, wait: float) -> float:
        """The import of a tracker alone may take longer than a short run: what it has to write comes after that.

        One that hung long before the end is not waited for again: a run of a minute must not be five seconds longer.
        Where calls take long, as uploads do, one that takes no longer than twice the longest has its seconds still.
        """
        start = wait * (1 + START_WAITS)
        latest = self._ended + start
        if self._started:
            latest = min(latest, max(self._ended, self._began) + wait)
        called = self._called  # once: its thread may set it meanwhile
        given = max(wait, 2 * self._longest) if self._started else start
        its_own = (self._ended if called is None else called) + given
        return min(latest, max(its_own, self._ended + SHARE * (self._ended - self._since)))

    @property
    def is_busy(self) -> bool:
        """Whether its thread is still at work; after the end that is one that hangs."""
        return self._thread is not None and self._thread.is_alive()

    def report(self) -> SinkReport:
        """At the end, what is neither written nor dropped counts as dropped: nobody waits for it any more."""
        with self._changed:
            hung = self._closing and self.is_busy
            waiting = sum(not isinstance(record, Restart) for record, _ in self._queue) + self._in_hand
            dropped = self._dropped + (waiting if self._closing else 0)
            return SinkReport(self.name, self._written, dropped, self._failures, self._error, hung)

    # -- in the thread -------------------------------------------------------------------------

    def _work(self, info: RunInfo) -> None:
        self._start(info)
        while batch := self._next():
            if isinstance(batch, Restart):
                if self._started:
                    self._once(self._sink.close)
                info = batch.info
                self._start(info)
                continue
            done = (self._started or self._start(info)) and self._try(partial(self._sink.write, batch))
            with self._changed:  # put() counts too, in another thread
                self._in_hand = 0
                if done:
                    self._written += len(batch)
                else:
                    self._dropped += len(batch)
            if self._started and not self._queue:
                self._once(self._sink.flush)
        if self._started:
            self._once(self._sink.close)

    def _start(self, info: RunInfo) -> bool:
        self._started, self._began = self._try(partial(self._sink.start, info)), monotonic()
        return self._started

    def _next(self) -> list[Record] | Restart:
        """What has come together up to a restart, or that; nothing at the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            batch: list[Record] = []
            while self._queue and len(batch) < BATCH:
                record, weight = self._queue[0]
                if isinstance(record, Restart) and batch:
                    break
                self._queue.popleft()
                if isinstance(record, Restart):
                    return record
                self._size -= weight
                batch.append(record)
            self._in_hand = len(batch)
            return batch

    def _try(self, act: Callable[[], None]) -> bool:
        """Do it, again after a pause if it raises, at the end of the run at once; whether it was done."""
        for pause in self._pauses:
            if self._once(act):
                return True
            if self._is_over(pause):
                break
        return self._once(act)

    def _once(self, act: Callable[[], None]) -> bool:
        began = self._called = monotonic()
        try:
            act()
            self._longest = max(self._longest, monotonic() - began)
        except BaseException as error:  # also SystemExit: in a thread it would end the sink without a word
            self._failures += 1
            self._error = _words(error)
            return False
        finally:
            self._called = None
        return True

    def _is_over(self, pause: float) -> bool:
        """Wait; whether the run came to its end meanwhile, so that there is time for one more try only."""
        end = monotonic() + pause
        with self._changed:
            while not self._closing and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            return self._closing


def _words(error: BaseException) -> str:
    """One short line without secrets: an address may hold a key."""
    return redact_text(words_of(error)[:1_000]).splitlines()[0][:200]


def _weight(record: Record) -> int:
    """How many rows it counts as: what is large must not fill the memory."""
    match record:
        case MetricRow():
            size = 0 if isinstance(record.value, float) else 32 * _count(record.value)
        case ImageRow():
            size = len(record.png)
        case TextRow():
            size = len(record.text)
        case TableRow():
            size = sum(32 + len(cell) if isinstance(cell, str) else 32 for row in record.rows for cell in row)
        case _:
            size = 0
    return 1 + size // 4096


def _count(value: Any) -> int:
    """The numbers in nested lists."""
    return sum(map(_count, value)) if isinstance(value, list) else 1
