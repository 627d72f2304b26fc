"""``TensorBoard``: a run in the files that TensorBoard shows."""

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
from hookline.records import EventRow, ImageRow, MetricRow, Record
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.sink import RunInfo
from hookline.sinks.tensorboard_file import EventFile, own_files, rewind
from hookline.sinks.tensorboard_graph import ModelGraph
from hookline.sinks.tensorboard_rows import Summaries, flat_config, tag_of

CHUNK = 1_000
"""So many earlier rows are written at once."""


class TensorBoard:
    """Writes what TensorBoard shows: ``tensorboard --logdir runs``; install it with ``hookline[tensorboard]``.

    It writes into ``folder``, which belongs to this run alone and is ``tensorboard`` if not given. A relative path is
    in the run's folder. The tag is the name of the row:

    - numbers are scalars, NaN and infinities too; an array is a table, and up to 16 elements also scalars
      (``val/recall/0`` …);
    - a picture is an image, its caption a text (``<name>/caption``); a histogram is one, and how many values were NaN
      or infinite is the scalar ``<name>/odd``;
    - texts are texts, which TensorBoard reads as Markdown; tables, the paths of files, and what happened
      (``hookline/events/checkpoint`` …) are texts, too;
    - ``config`` is a row in the tab HPARAMS, with the metrics of evaluations and epochs when the run has come to
      its end;
    - with ``graph=True`` the model is traced on one batch of training, and is in the tab GRAPHS.

    When a run goes on, what was written after the checkpoint is cut off, and what was lost when the process was
    killed is added: each value is there once, also if the sink has joined the run only now.

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

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, graph: bool = False) -> None:
        if find_spec("tensorboard") is None:
            raise SetupError("sinks.TensorBoard needs TensorBoard: pip install 'hookline[tensorboard]'")
        self.folder = None if folder is None else path_to_write(folder, "folder", "TensorBoard")
        """As it was given. A relative path is in the run's folder."""
        self.needs_folder = self.folder is None or not self.folder.is_absolute()
        self.graph = ModelGraph() if graph else None
        self.callbacks: tuple[Callback, ...] = () if self.graph is None else (self.graph,)
        self._file: EventFile | None = None

    def start(self, info: RunInfo) -> None:
        began = time.time()
        if self._file is not None:  # another try, or a run that was left
            self._file.close()
            self._file = None
        given = self.folder or Path("tensorboard")
        folder = in_run_folder(given, info.folder, "folder", "TensorBoard")
        self._summaries = Summaries(info.folder)
        self._config = flat_config(info.config)
        self._names: dict[str, dict[str, None]] = {"step": {}, "epoch": {}, "eval": {}}
        self._ended, self._step, self._seconds = False, info.step, 0.0
        is_own = self.needs_folder and ".." not in given.parts  # no other run writes there
        files = own_files(folder, None if is_own else info.run_id)
        earlier = _Earlier(self._seen(info.earlier()))
        # A run without a folder has its earlier rows nowhere but here.
        kept = rewind(files, earlier.has if info.folder is not None else lambda _, step: step <= info.step)
        self._file = EventFile(folder, info.run_id)
        self._file.append(self._head(kept + 1 if files else None))
        for rows in _chunks(row for row in earlier.rest() if _can_be_read(row, info.folder)):
            self._file.append(self._events(rows, min(info.started.timestamp(), began - rows[-1].seconds)))
        self._zero = began - self._seconds
        """The time of day at which the run's seconds were 0, had it never been interrupted."""

    def write(self, records: Sequence[Record]) -> None:
        if not records:
            return
        # A row that comes at once says it best; before the first, the clock may have stood still.
        self._zero = min(self._zero, time.time() - max(row.seconds for row in records))
        self._opened().append(self._events(records, self._zero))
        for row in self._seen(records):
            self._ended = self._ended or (isinstance(row, EventRow) and row.name == "end")

    def flush(self) -> None:
        """Rows are in the file once they are written; a graph comes when there is one."""
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
        if self._file is None:
            raise SetupError("sinks.TensorBoard: a row can be written after start(info) and before close()")
        return self._file

    def _seen(self, rows: Iterable[Record]) -> Iterator[Record]:
        """The rows, of which is noted what is needed later."""
        for row in rows:
            self._step, self._seconds = row.step, max(self._seconds, row.seconds)
            if isinstance(row, MetricRow) and not isinstance(row.value, list):
                self._names[row.kind][row.name] = None
            yield row

    def _events(self, rows: Iterable[Record], zero: float) -> Iterator[Any]:
        return (self._summaries.event(row, zero + row.seconds) for row in rows)

    def _head(self, purge_step: int | None) -> list[Any]:
        """What comes before the rows: for a page that shows the run now, that later ones do not hold; the settings."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        head = []
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            again = Event(wall_time=time.time(), step=purge_step, session_log=start)
            head += [again, again]  # TensorBoard takes the first that it sees for the beginning of the run
        return head + ([self._event(summary=part) for part in self._settings("start")] if self._config else [])

    def _settings(self, *parts: str) -> list[Any]:
        """The hyper-parameters, for the tab HPARAMS: what an experiment measures, how it starts, that it ended."""
        from torch.utils.tensorboard.summary import hparams

        measured = self._names["eval"] | self._names["epoch"] or self._names["step"]
        found = dict(zip(("experiment", "start", "end"), hparams(self._config, measured), strict=True))
        return [found[part] for part in parts]

    def _event(self, **what: Any) -> Any:
        from tensorboard.compat.proto.event_pb2 import Event

        return Event(wall_time=time.time(), step=self._step, **what)


class _Earlier:
    """The rows that hold, compared with those that are written, both in their order."""

    def __init__(self, rows: Iterable[Record]) -> None:
        self._rows = iter(rows)
        self._passed: list[Record] = []

    def has(self, tag: str, step: int) -> bool:
        """Whether what is written next is the next of the rows; those passed over were dropped, or are lost."""
        for row in self._rows:
            if row.step == step and tag_of(row) == tag:
                self._passed.clear()
                return True
            self._passed.append(row)
        return False

    def rest(self) -> Iterator[Record]:
        """Those after the last that is written."""
        yield from self._passed
        yield from self._rows


def _can_be_read(row: Record, folder: Path | None) -> bool:
    """A picture of an earlier row lies in a file, which the user may have deleted."""
    return not isinstance(row, ImageRow) or bool(row.png) or (folder is not None and (folder / row.file).is_file())


def _chunks(rows: Iterable[Record]) -> Iterator[list[Record]]:
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
