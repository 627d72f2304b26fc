"""``TensorBoard``: event files for TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from hookline.errors import SetupError
from hookline.events import Callback
from hookline.events.arguments import checked_init
from hookline.records import EventRow, ImageRow, MetricRow, Record
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.sink import RunInfo
from hookline.sinks.tensorboard_file import EventFile, own_files, rewind
from hookline.sinks.tensorboard_graph import ModelGraph
from hookline.sinks.tensorboard_rows import Summaries, flat_config, tag_of

CHUNK = 1_000
"""Number of earlier rows that are written at once."""


class TensorBoard:
    """Write event files for TensorBoard.

    The files have scalars, images, texts, histograms and hyper-parameters. The tag is the name of the record.
    Show the files with ``tensorboard --logdir runs``. The sink needs ``hookline[tensorboard]``.

    Args:
        folder: Folder of the event files, which only this run may use. ``None``: ``tensorboard``. A relative
            path is relative to the run's folder.
        graph: Also trace the model on one training batch and write its graph.

    Raises:
        SetupError: If TensorBoard is not installed.

    Example:
        >>> from datetime import datetime
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> sink = TensorBoard()
        >>> with TemporaryDirectory() as folder:
        ...     sink.start(RunInfo("digits", "first", "a1", Path(folder), {}, datetime.now(), 0, lambda: iter(())))
        ...     sink.write([MetricRow("train/loss", 1, 0, 0.5, "step", 0.1)])
        ...     sink.close()
        ...     len(list(Path(folder, "tensorboard").glob("events.out.tfevents.*")))
        1
    """

    @checked_init
    def __init__(self, folder: str | os.PathLike[str] | None = None, *, graph: bool = False) -> None:
        if find_spec("tensorboard") is None:
            raise SetupError("sinks.TensorBoard needs TensorBoard: pip install 'hookline[tensorboard]'")
        self.folder = None if folder is None else path_to_write(folder, "folder", "TensorBoard")
        """Folder as the user gave it. A relative path is relative to the run's folder."""
        self.needs_folder = self.folder is None or not self.folder.is_absolute()
        self.graph = ModelGraph() if graph else None
        self.callbacks: tuple[Callback, ...] = () if self.graph is None else (self.graph,)
        self._file: EventFile | None = None

    def start(self, info: RunInfo) -> None:
        began = time.time()
        if self._file is not None:  # A retry, or a run that was not closed.
            self._file.close()
            self._file = None
        given = self.folder or Path("tensorboard")
        folder = in_run_folder(given, info.folder, "folder", "TensorBoard")
        self._summaries = Summaries(info.folder)
        self._config = flat_config(info.config)
        self._names: dict[str, dict[str, None]] = {"step": {}, "epoch": {}, "eval": {}}
        self._ended, self._step, self._seconds = False, info.step, 0.0
        is_own = self.needs_folder and ".." not in given.parts  # No other run writes there.
        files = own_files(folder, None if is_own else info.run_id)
        earlier = _Earlier(self._seen(info.earlier()))
        # Without a folder, only these files have the earlier rows.
        kept = rewind(files, earlier.has if info.folder is not None else lambda _, step: step <= info.step)
        self._file = EventFile(folder, info.run_id)
        self._file.append(self._head(kept + 1 if files else None))
        for rows in _chunks(row for row in earlier.rest() if _can_be_read(row, info.folder)):
            self._file.append(self._events(rows, min(info.started.timestamp(), began - rows[-1].seconds)))
        self._zero = began - self._seconds
        """Time of day at which the seconds of the run were 0, if it had never been interrupted."""

    def write(self, records: Sequence[Record]) -> None:
        if not records:
            return
        # The row with the shortest delay gives the best estimate of the start. Before the first row, the clock may not
        # have advanced.
        self._zero = min(self._zero, time.time() - max(row.seconds for row in records))
        self._opened().append(self._events(records, self._zero))
        for row in self._seen(records):
            self._ended = self._ended or (isinstance(row, EventRow) and row.name == "end")

    def flush(self) -> None:
        """Write the graph, if there is a new one. ``write`` is not buffered."""
        found = None if self.graph is None else self.graph.take()
        if found is not None:
            self._opened().append([self._event(graph_def=found.SerializeToString())])

    def close(self) -> None:
        if self._file is None:
            return
        try:
            self.flush()
            if self._ended and self._config:
                self._file.append(self._event(summary=part) for part in self._settings("experiment", "end"))
        finally:
            self._file.close()
            self._file = None

    # ------------------------------------------------------------------------------------------

    def _opened(self) -> EventFile:
        """Return the open file, or raise ``SetupError``."""
        if self._file is None:
            raise SetupError("sinks.TensorBoard: a row can be written after start(info) and before close()")
        return self._file

    def _seen(self, rows: Iterable[Record]) -> Iterator[Record]:
        """Yield the rows, and record steps and names for later."""
        for row in rows:
            self._step, self._seconds = row.step, max(self._seconds, row.seconds)
            if isinstance(row, MetricRow) and not isinstance(row.value, list):
                self._names[row.kind][row.name] = None
            yield row

    def _events(self, rows: Iterable[Record], zero: float) -> Iterator[Any]:
        """Yield the rows as events."""
        return (self._summaries.event(row, zero + row.seconds) for row in rows)

    def _head(self, purge_step: int | None) -> list[Any]:
        """Return the events before the rows.

        They are the hyper-parameters, and the step from which on an open page discards rows.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        head = []
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            again = Event(wall_time=time.time(), step=purge_step, session_log=start)
            head += [again, again]  # TensorBoard takes the first one as the start of the run.
        return head + ([self._event(summary=part) for part in self._settings("start")] if self._config else [])

    def _settings(self, *parts: str) -> list[Any]:
        """Return the hyper-parameters for the HPARAMS tab: the metrics, the start and the end."""
        from torch.utils.tensorboard.summary import hparams

        measured = self._names["eval"] | self._names["epoch"] or self._names["step"]
        found = dict(zip(("experiment", "start", "end"), hparams(self._config, measured), strict=True))
        return [found[part] for part in parts]

    def _event(self, **what: Any) -> Any:
        """Return an event at the current step."""
        from tensorboard.compat.proto.event_pb2 import Event

        return Event(wall_time=time.time(), step=self._step, **what)


class _Earlier:
    """Compare the valid rows with the written rows, both in order."""

    def __init__(self, rows: Iterable[Record]) -> None:
        self._rows = iter(rows)
        self._passed: list[Record] = []

    def has(self, tag: str, step: int) -> bool:
        """Return whether the next written row is valid. Rows that are skipped were dropped or lost."""
        for row in self._rows:
            if row.step == step and tag_of(row) == tag:
                self._passed.clear()
                return True
            self._passed.append(row)
        return False

    def rest(self) -> Iterator[Record]:
        """Yield the rows after the last written one."""
        yield from self._passed
        yield from self._rows


def _can_be_read(row: Record, folder: Path | None) -> bool:
    """True unless the row is an image whose file the user has deleted."""
    return not isinstance(row, ImageRow) or bool(row.png) or (folder is not None and (folder / row.file).is_file())


def _chunks(rows: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield lists of rows."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
