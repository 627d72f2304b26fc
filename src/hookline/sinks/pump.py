"""``Pump``: thread and bounded queue between the loop and one sink."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from hookline.errors import error_text
from hookline.records import ImageRow, MetricRow, Record, TableRow, TextRow
from hookline.records.redact import redact_text
from hookline.sinks.sink import RunInfo, Sink

MAX_WAITING = 10_000
"""Maximum number of waiting rows. The oldest are dropped.

A large record counts as one row per 4 KB.
"""
BATCH = 1_000
"""Maximum number of rows per write."""
PAUSES = (0.5, 2.0, 8.0)
"""Seconds before each retry of a write. After the last retry the rows are dropped."""
WAIT = 5.0
"""Seconds that the end of a run waits for a sink. The time of a call before the end counts."""
SHARE = 0.02
"""Fraction of the run's time that the end always waits, even without time left in ``WAIT``."""
START_WAITS = 3
"""A sink that has not started gets this many times ``WAIT`` in addition.

Once started, it gets ``WAIT``.
"""
LOOK = 0.05
"""Seconds between two checks whether the sink has started."""


@dataclass(frozen=True, slots=True)
class SinkReport:
    """Result of one sink."""

    sink: str
    """Name of the sink."""
    written: int
    """Number of rows that were written."""
    dropped: int
    """Number of rows that were not written: the sink was too slow, or failed."""
    failures: int
    """Number of errors that the sink has raised."""
    error: str = ""
    """Last error."""
    hung: bool = False
    """True if the sink was still busy when the run ended, and was abandoned."""

    @property
    def is_well(self) -> bool:
        """True if nothing was dropped and nothing has failed."""
        return not (self.dropped or self.failures or self.hung)

    def __str__(self) -> str:
        parts = [f"{self.written:,} rows written"]
        parts += [f"{self.dropped:,} dropped"] if self.dropped else []
        parts += [f"failed {self.failures} time(s), last with {self.error}"] if self.failures else []
        parts += ["was still busy after the end and was left"] if self.hung else []
        return f"{self.sink}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Marker in the queue: the run was rolled back, and the sink restarts."""

    info: RunInfo


class Pump:
    """Pass rows to a sink in a separate thread.

    Only ``close`` waits for the sink, for a short time.

    When the queue is full, the oldest rows are dropped and counted.

    Args:
        name: Name of the sink in reports.
        sink: The sink.
        most: Maximum number of waiting rows.
        pauses: Seconds before each retry.
    """

    def __init__(self, name: str, sink: Sink, *, most: int = MAX_WAITING, pauses: Sequence[float] = PAUSES) -> None:
        self.name, self._sink = name, sink
        self._most, self._pauses = most, tuple(pauses)
        self._queue: deque[tuple[Record | Restart, int]] = deque()  # Each entry has its weight.
        self._size = 0  # Total weight of the queue.
        self._in_hand = 0  # Rows that the sink is writing.
        self._changed = threading.Condition()
        self._closing, self._ended = False, 0.0
        self._since = 0.0  # Start of the run.
        self._called: float | None = None  # Start of the current call of the sink.
        self._longest = 0.0  # Seconds of the longest successful call.
        self._written = self._dropped = self._failures = 0
        self._error = ""
        self._told = 0
        self._started, self._began = False, 0.0  # Whether and when the sink has started.
        self._thread: threading.Thread | None = None

    def start(self, info: RunInfo) -> None:
        """Start the thread.

        It is a daemon thread, so that a sink that hangs does not keep the process alive.
        """
        name, self._since = f"hookline sink {self.name}", monotonic()
        self._thread = threading.Thread(target=self._work, args=(info,), name=name, daemon=True)
        self._thread.start()

    def put(self, records: Sequence[Record]) -> None:
        """Add rows without waiting for the sink."""
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
        """Restart the sink after the rows in the queue, because rows were rolled back."""
        with self._changed:
            self._queue.append((Restart(info), 0))
            self._changed.notify()

    def trouble(self) -> str | None:
        """Return the first problem as a string, once. ``None`` if there is none or it was returned."""
        if self._told or not (self._failures or self._dropped):
            return None
        self._told = 1
        return str(self.report())

    def end(self) -> None:
        """Announce that no rows follow. The sink writes the rest and closes."""
        with self._changed:
            if not self._closing:
                self._closing, self._ended = True, monotonic()
            self._changed.notify()

    def close(self, wait: float = WAIT) -> SinkReport:
        """Wait until the sink has finished, and return its report.

        Args:
            wait: Seconds after ``end`` until the sink is abandoned.
        """
        self.end()
        while self._thread is not None and self.is_busy and (left := self._leave_at(wait) - monotonic()) > 0:
            self._thread.join(min(left, LOOK))
        return self.report()

    def _leave_at(self, wait: float) -> float:
        """Return the time at which to abandon the sink.

        - Importing a tracker may take longer than a short run, so the time to write starts after the import.
        - A sink that hung long before the end gets no additional time: a run of a minute must not take five
          seconds longer.
        - If calls are usually slow, as uploads are, a call may take twice as long as the longest one so far.
        """
        start = wait * (1 + START_WAITS)
        latest = self._ended + start
        if self._started:
            latest = min(latest, max(self._ended, self._began) + wait)
        called = self._called  # Read once, because the thread may change it.
        given = max(wait, 2 * self._longest) if self._started else start
        its_own = (self._ended if called is None else called) + given
        return min(latest, max(its_own, self._ended + SHARE * (self._ended - self._since)))

    @property
    def is_busy(self) -> bool:
        """True while the thread works. After the end, the sink hangs."""
        return self._thread is not None and self._thread.is_alive()

    def report(self) -> SinkReport:
        """Return the report. After the end, rows that still wait count as dropped."""
        with self._changed:
            hung = self._closing and self.is_busy
            waiting = sum(not isinstance(record, Restart) for record, _ in self._queue) + self._in_hand
            dropped = self._dropped + (waiting if self._closing else 0)
            return SinkReport(self.name, self._written, dropped, self._failures, self._error, hung)

    # -- in the thread -------------------------------------------------------------------------

    def _work(self, info: RunInfo) -> None:
        """Pass rows to the sink until the end. This runs in the thread."""
        self._start(info)
        while batch := self._next():
            if isinstance(batch, Restart):
                if self._started:
                    self._once(self._sink.close)
                info = batch.info
                self._start(info)
                continue
            done = (self._started or self._start(info)) and self._try(partial(self._sink.write, batch))
            with self._changed:  # put() changes the counts in another thread.
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
        """Start the sink with retries. Return True if it has started."""
        self._started, self._began = self._try(partial(self._sink.start, info)), monotonic()
        return self._started

    def _next(self) -> list[Record] | Restart:
        """Return the rows up to a restart, or the restart. Empty at the end."""
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
        """Call a function with retries. After the end of the run, retry only once, without a pause.

        Return True on success.
        """
        for pause in self._pauses:
            if self._once(act):
                return True
            if self._is_over(pause):
                break
        return self._once(act)

    def _once(self, act: Callable[[], None]) -> bool:
        """Call a function, and record its error. Return True on success."""
        began = self._called = monotonic()
        try:
            act()
            self._longest = max(self._longest, monotonic() - began)
        except BaseException as error:  # SystemExit as well: it would end the thread silently.
            self._failures += 1
            self._error = _words(error)
            return False
        finally:
            self._called = None
        return True

    def _is_over(self, pause: float) -> bool:
        """Wait for the pause. Return True if the run has ended, so that only one retry is left."""
        end = monotonic() + pause
        with self._changed:
            while not self._closing and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            return self._closing


def _words(error: BaseException) -> str:
    """Return an error as one short line without secrets: a URL may contain a key."""
    return redact_text(error_text(error)[:1_000]).splitlines()[0][:200]


def _weight(record: Record) -> int:
    """Return how many rows a record counts as, so that large records do not fill the memory."""
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
    """Return the number of values in nested lists."""
    return sum(map(_count, value)) if isinstance(value, list) else 1
