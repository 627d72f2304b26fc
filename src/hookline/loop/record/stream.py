"""The stream of records: to files at once, and to each sink through its own thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hookline.checkpoint.commit import free_bytes
from hookline.errors import RecordWriteError
from hookline.records import EventRow, Record
from hookline.sinks.jsonl import WaitingJsonLines
from hookline.sinks.pump import WAIT, Pump, SinkReport
from hookline.sinks.sink import RunInfo, Sink

logger = logging.getLogger("hookline")

METRICS, EVENTS, MEDIA = "metrics.jsonl", "events.jsonl", "media"


class Stream:
    """Write records to ``metrics.jsonl``, ``events.jsonl`` and the sinks.

    A resume removes the rows of ``metrics.jsonl`` after its checkpoint. ``events.jsonl``, the timeline, keeps all rows.
    On a full disk rows wait in memory. A file that cannot be written raises ``RecordWriteError``, or Hookline warns if
    the run continues without the file.

    Args:
        sinks: The sinks of the run.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = _named(sinks)
        self._pumps: list[Pump] = []
        self._left: list[Pump] = []  # pumps of an earlier fit whose sinks hang
        self._events: WaitingJsonLines | None = None
        self._is_open = False
        self._media_written = self._media_dropped = 0
        self._media_error = ""
        self.rows: WaitingJsonLines | None = None
        self.reports: tuple[SinkReport, ...] = ()
        """Reports of the sinks after the run, and of each file of the run that could not be written."""
        self.continues_on_full_disk: Callable[[], bool] = lambda: False
        """True if Hookline warns about a file that cannot be written, and does not raise."""

    def continue_on_full_disk_if(self, condition: Callable[[], bool]) -> None:
        """Log a warning instead of raising an error for a file that cannot be written, while a condition holds."""
        self.continues_on_full_disk = condition

    def open(self, folder: Path | None) -> None:
        """Set the folder of the run. ``None``: write no files."""
        self.rows = None if folder is None else WaitingJsonLines(folder / METRICS)
        self._events = None if folder is None else WaitingJsonLines(folder / EVENTS)

    def after(self, earlier: Stream) -> None:
        """Leave out sinks that hang in the earlier stream, so that no sink is used by two threads."""
        self._left = [*earlier._left]

    def start(self, info: RunInfo) -> None:
        """Start the sinks."""
        hung = [pump.name for pump in self._left if pump.is_busy]
        if hung:
            logger.warning("left out, because they hang since the last fit: %s", ", ".join(hung))
        self._pumps = [Pump(name, sink) for name, sink in self._sinks.items() if name not in hung]
        self.reports, self._is_open = (), True
        self._media_written = self._media_dropped = 0
        for pump in self._pumps:
            pump.start(info)

    def restart(self, info: RunInfo) -> None:
        """Restart the sinks after a rollback. Each sink restarts when its thread comes to it."""
        for pump in self._pumps:
            pump.restart(info)

    def write(self, records: Sequence[Record]) -> None:
        """Write rows to ``metrics.jsonl`` and hand them to the sinks."""
        for pump in self._pumps:
            pump.put(records)
        if self.rows is not None:
            self._append(self.rows, records, is_needed=True)

    def note(self, row: EventRow) -> None:
        """Write an event to the sinks and the timeline.

        Before ``start`` the timeline stays unchanged.
        """
        for pump in self._pumps:
            pump.put([row])
        if self._is_open and self._events is not None:  # An unwritten timeline must not end the run.
            self._append(self._events, [row], is_needed=False)

    def _append(self, file: WaitingJsonLines, rows: Sequence[Record], *, is_needed: bool) -> None:
        had_failed = file.error is not None
        file.write(rows)
        if file.error is not None:
            error = write_error(file.path, file.error)
            if is_needed and not self.continues_on_full_disk():
                raise error from file.error
            if not had_failed:
                logger.warning("%s. Rows wait in memory and are tried again before each later row", error.problem)
        elif had_failed:
            logger.warning("%s can be written again: the rows that waited in memory are in it", file.path)

    def write_file(self, path: Path, write: Callable[[Path], object]) -> bool:
        """Write an image or another file of the record.

        Args:
            path: Path of the file.
            write: Function that writes the file.

        Returns:
            False if the file could not be written and the run continues without it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as cause:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            error = write_error(path, cause)
            if not self.continues_on_full_disk():
                raise error from cause
            if not self._media_dropped:
                logger.warning("%s. The file is left out; its row is written without it", error.problem)
            self._media_dropped += 1
            self._media_error = error.problem
            return False
        self._media_written += 1
        return True

    def problems(self) -> list[str]:
        """Return the reports of sinks that have failed so far."""
        return [str(report) for pump in self._pumps if not (report := pump.report()).is_well]

    def trouble(self) -> list[str]:
        """Return the problems of sinks that have failed since the last call."""
        return [found for pump in self._pumps if (found := pump.trouble()) is not None]

    def close(self) -> tuple[SinkReport, ...]:
        """End the sinks, wait a few seconds for all of them together, and return their reports."""
        for pump in self._pumps:
            pump.end()
        try:
            self.reports = tuple(pump.close(WAIT) for pump in self._pumps)
        finally:
            self.reports += self._end()
        for report in self.reports:
            if report.hung:  # The run may have waited for this sink, and nothing else explains the delay.
                logger.warning("the sink %s", report)
        return self.reports

    def _end(self) -> tuple[SinkReport, ...]:
        """Close the files of the run, and return a report for each that could not be written."""
        self._left = [pump for pump in (*self._left, *self._pumps) if pump.is_busy]
        self._pumps, self._is_open = [], False
        reports = [_close_file(file) for file in (self.rows, self._events) if file is not None]
        if self._media_dropped:
            lost = self._media_dropped
            reports.append(SinkReport(MEDIA, self._media_written, lost, lost, self._media_error))
        if self.rows is not None:
            self.open(self.rows.path.parent)  # The counts of the next fit start from zero.
        return tuple(report for report in reports if report.failures)


def write_error(path: Path, cause: OSError) -> RecordWriteError:
    """Return the error for a file of the record that could not be written."""
    return RecordWriteError(str(path), cause, free=free_bytes(path.parent))


def _close_file(file: WaitingJsonLines) -> SinkReport:
    """Try to write the waiting rows a last time, and close the file."""
    error = file.error
    if not file.retry() and file.error is not None:
        error, lost = file.error, file.abandon()
        logger.warning("%s: %d rows are lost: %s", file.path, lost, write_error(file.path, error).problem)
    file.close()
    problem = "" if error is None else write_error(file.path, error).problem
    return SinkReport(file.path.name, file.written, file.dropped, file.failures, problem)


def _named(sinks: Sequence[Sink]) -> dict[str, Sink]:
    """Return the sinks by class name, with a number from the second sink of a class on."""
    found: dict[str, Sink] = {}
    for sink in sinks:
        name = str(getattr(sink, "name", None) or type(sink).__name__)
        number, free = 2, name
        while free in found:
            free, number = f"{name}-{number}", number + 1
        found[free] = sink
    return found
