"""The record of a run: rows, steps, timeline and sinks, in the process that writes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from hookline.loop.record.steps import StepRecord
from hookline.loop.record.stream import Stream
from hookline.records import EventRow, MetricRow, Record
from hookline.records.metric import losses_not_finite
from hookline.records.plain import public
from hookline.records.redact import redact_text
from hookline.run import RunState
from hookline.run.audience import Audience
from hookline.sinks.sink import RunInfo, Sink

logger = logging.getLogger("hookline")


class Records:
    """Decide which values become records, and write them to the stream.

    Args:
        state: The state of the run.
        sinks: The sinks of the run.
        digest_of: Returns the digest of the samples of the batches up to a position, since its last call.
    """

    def __init__(self, state: RunState, sinks: Sequence[Sink], digest_of: Callable[[int], int]) -> None:
        self._state = state
        self._process = os.getpid()
        self._failures_noted, self._nan_noted = 0, False
        self.stream = Stream(sinks)
        self.steps = StepRecord(state.clock, digest_of)

    def open(self) -> None:
        """Note that this process opens the run."""
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked while the run is open. Only its parent writes files."""
        return os.getpid() != self._process

    @property
    def are_written(self) -> bool:
        """True in a fit, in the process that writes the files of the run."""
        return self._state.in_fit and self._state.rank == 0 and not self.is_forked

    @property
    def are_kept(self) -> bool:
        """True if a logged value becomes a record now. A sanity check or an answer leaves none."""
        return self.are_written and self._state.audience is Audience.ALL

    @property
    def size(self) -> int:
        """The size of ``metrics.jsonl`` in bytes.

        A resume truncates the file to the size in the checkpoint.
        """
        return 0 if self.stream.rows is None else self.stream.rows.size

    def write(self, rows: Sequence[Record]) -> None:
        """Write rows of metrics."""
        if self.are_written:
            self.stream.write(rows)
            self.note_trouble()
            if not self._nan_noted:
                self._note_nan(rows)

    def note(self, name: str, text: str = "", *, took: float = 0.0) -> None:
        """Write an event to the timeline.

        Args:
            name: Name of the event.
            text: Details.
            took: Duration in seconds of an event that has just ended.
        """
        clock = self._state.clock
        if self.are_written and self._state.audience in (Audience.ALL, Audience.ANSWER):
            began = max(0.0, clock.seconds - took)
            self.stream.note(EventRow(name, clock.step, clock.epoch, began, redact_text(text), took))

    def note_trouble(self) -> None:
        """Note optional callbacks and sinks that have failed since the last call."""
        failures = self._state.line.failures[self._failures_noted :]
        self._failures_noted += len(failures)
        for failure in failures:
            self.note("callback_disabled", str(failure))
        for trouble in self.stream.trouble():
            logger.warning("the sink %s; training continues", trouble)
            self.note("sink", trouble)

    def _note_nan(self, rows: Sequence[Record]) -> None:
        """Warn about the first loss that is not finite, unless a callback handles it."""
        values = {row.name: row.value for row in rows if isinstance(row, MetricRow)}
        found = losses_not_finite(values)
        if not found:
            return
        self._nan_noted = True
        self.note("nan", found[0])
        if not any(getattr(member.callback, "handles_nan", False) for member in self._state.line.members):
            logger.warning(
                "%s at step %d. Training continues. Add hl.StopOnNaN() to stop before such a value is in the weights.",
                found[0],
                self._state.clock.step,
            )

    def start(self, run_id: str) -> None:
        """Start the sinks, after a checkpoint is loaded."""
        if not self._state.rank:
            self.stream.start(self._info(run_id))

    def restart(self, run_id: str) -> None:
        """Restart the sinks, after a rollback has removed rows."""
        if not self._state.rank:
            self.stream.restart(self._info(run_id))

    def _info(self, run_id: str) -> RunInfo:
        state, rows, size = self._state, self.stream.rows, self.size
        return RunInfo(
            project=state.project,
            name=state.name,
            run_id=run_id,
            folder=state.folder,
            config=public(state.config),
            started=state.started,
            step=state.clock.step,
            earlier=lambda: iter(()) if rows is None else rows.read(size, quietly=True),
        )
