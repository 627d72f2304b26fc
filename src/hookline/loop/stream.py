"""The stream of a run's records: to its files at once, and to each sink through a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from hookline.records import EventRow, Record
from hookline.sinks.jsonl import JsonLines
from hookline.sinks.pump import WAIT, Pump, SinkReport
from hookline.sinks.sink import RunInfo, Sink

logger = logging.getLogger("hookline")

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"


class Stream:
    """``metrics.jsonl`` is rewound by a resume; ``events.jsonl``, the timeline, keeps what really happened."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = _named(sinks)
        self._pumps: list[Pump] = []
        self._left: list[Pump] = []  # of an earlier fit, whose sinks hang
        self._events: JsonLines | None = None
        self._is_open = False
        self.rows: JsonLines | None = None
        self.reports: tuple[SinkReport, ...] = ()
        """How the sinks fared, once the run is over."""

    def open(self, folder: Path | None) -> None:
        self.rows = None if folder is None else JsonLines(folder / METRICS)
        self._events = None if folder is None else JsonLines(folder / EVENTS)

    def after(self, earlier: Stream) -> None:
        """Another stream had the same sinks: one that hangs there is not given to a second thread."""
        self._left = [*earlier._left]

    def start(self, info: RunInfo) -> None:
        """From here on sinks get what is written."""
        hung = [pump.name for pump in self._left if pump.is_busy]
        if hung:
            logger.warning("left out, because they hang since the last fit: %s", ", ".join(hung))
        self._pumps = [Pump(name, sink) for name, sink in self._sinks.items() if name not in hung]
        self.reports, self._is_open = (), True
        for pump in self._pumps:
            pump.start(info)

    def restart(self, info: RunInfo) -> None:
        """The run has gone back: sinks take it up anew, each when it comes to it."""
        for pump in self._pumps:
            pump.restart(info)

    def write(self, records: Sequence[Record]) -> None:
        if self.rows is not None:
            self.rows.write(records)
        for pump in self._pumps:
            pump.put(records)

    def note(self, row: EventRow) -> None:
        """Something happened; what fails before the start leaves the folder as it was."""
        if self._is_open and self._events is not None:
            try:
                self._events.write([row])
            except OSError as error:  # a timeline is for people: nobody's run ends because of it
                logger.warning("%s could not be written, and is not tried again: %s", EVENTS, error)
                self._events = None
        for pump in self._pumps:
            pump.put([row])

    def trouble(self) -> list[str]:
        """What has gone wrong with sinks for the first time."""
        return [found for pump in self._pumps if (found := pump.trouble()) is not None]

    def close(self) -> tuple[SinkReport, ...]:
        """Wait for the sinks, all at the same time and not for long."""
        for pump in self._pumps:
            pump.end()
        try:
            self.reports = tuple(pump.close(WAIT) for pump in self._pumps)
        finally:
            self._end()
        for report in self.reports:
            if report.hung:  # nobody else says so, and somebody may have waited for it
                logger.warning("the sink %s", report)
        return self.reports

    def _end(self) -> None:
        self._left = [pump for pump in (*self._left, *self._pumps) if pump.is_busy]
        self._pumps, self._is_open = [], False
        for file in (self.rows, self._events):
            if file is not None:
                file.close()


def _named(sinks: Sequence[Sink]) -> dict[str, Sink]:
    """By the names of their classes, numbered when there are several of one class."""
    found: dict[str, Sink] = {}
    for sink in sinks:
        name = str(getattr(sink, "name", None) or type(sink).__name__)
        number, free = 2, name
        while free in found:
            free, number = f"{name}-{number}", number + 1
        found[free] = sink
    return found
