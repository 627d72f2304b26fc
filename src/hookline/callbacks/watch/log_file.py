"""``LogFile``: the console output of a run in ``log.txt``."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from hookline.callbacks.watch.log_text import LogText
from hookline.callbacks.watch.progress import styles
from hookline.callbacks.watch.progress.following import Following, closing
from hookline.callbacks.watch.progress.redirect import Tee, kept
from hookline.callbacks.watch.progress.wording import number
from hookline.callbacks.watch.progress_bar import ProgressBar
from hookline.events import Callback
from hookline.progress.counted import counted

if TYPE_CHECKING:
    from hookline.run import Run


class LogFile(Following, Callback):
    """Write ``log.txt`` in the run's folder: progress, console output, warnings and errors.

    The file has these lines, each with date and time:

    - Progress, as ``ProgressBar(style="plain")`` prints it.
    - Everything that the program prints to standard output and standard error, including warnings.
    - Messages of Hookline's logger.
    - At the end, the reason why the run stopped and the last metrics, or the traceback of the error.

    Secrets are redacted and color codes removed. When the file reaches 50 MB, output of the program is left
    out. Output that bypasses Python, from C code or child processes, is not captured. If the file cannot be
    written, Hookline continues the run without it.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = Path(tempfile.mkdtemp())
        >>> trainer = Trainer(max_duration="1ep", callbacks=[LogFile()], folder=folder, name="digits/first")
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> lines = (folder / "log.txt").read_text().splitlines()
        >>> lines[0][20:], lines[1][20:38]
        ('==== digits/first begins ====', 'epoch 1/1 step 1/4')
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    """The callback runs last, so that it captures the output of other callbacks."""

    def __init__(self) -> None:
        self._log: LogText | None = None
        self._watched: ExitStack | None = None
        self._failed = False
        super().__init__()

    @closing
    def on_setup(self, run: Run) -> None:
        self.metrics = next((bar.metrics for bar in run.callbacks if isinstance(bar, ProgressBar)), ())
        super().on_setup(run)
        self._failed = False
        if not run.has_folder or not run.is_training_run:
            self._due = math.inf
            return
        self._log = log = LogText(run.folder / "log.txt")
        self._watched = ExitStack()
        self._watched.enter_context(kept(log.keep))
        self._watched.enter_context(_records_kept(log))

    @closing
    def on_model_ready(self, run: Run) -> None:
        self._begin(run)

    @closing
    def on_exception(self, run: Run) -> None:
        self._failed = True
        super().on_exception(run)
        if self._log is not None:
            self._begin(run)
            self._say("".join(traceback.format_exception(run.exception)).rstrip())

    @closing
    def on_teardown(self, run: Run) -> None:
        self._show_end(run)
        if self._log is not None:
            self._begin(run)
            self._unwatch()  # An unfinished last line must come before the summary.
            self._say("\n".join(_summary(run, failed=self._failed)))
        self._close()

    def _style(self, run: Run) -> styles.Style | None:
        if self._log is None:
            return None
        self._begin(run)  # The callback may have been added during the run.
        return styles.plain(self._say)

    def _begin(self, run: Run) -> None:
        """Write the heading of this call, once."""
        if self._log is not None:
            name = f"{run.project}/{run.name}"
            goes_on = self._log.goes_on or run.clock.step > 0
            self._log.begin(f"{name} goes on at step {run.clock.step}" if goes_on else f"{name} begins")

    def _say(self, text: str) -> None:
        """Write a line, and raise any error since the last call, also from a captured print."""
        if self._log is not None:
            self._log.say(text)
            if self._log.error is not None:
                raise self._log.error

    def _close(self) -> None:
        super()._close()
        self._unwatch()
        log, self._log = self._log, None
        if log is not None:
            log.close()
            if log.error is not None:
                raise log.error

    def _unwatch(self) -> None:
        """Stop capturing output."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()


def _summary(run: Run, *, failed: bool) -> Iterator[str]:
    """Yield the lines at the end of a run."""
    yield f"stopped: {'not trained' if run.ending is None else run.ending.reason}"
    clock = run.clock
    counts = counted(clock.step, "step"), counted(clock.epoch, "epoch"), counted(clock.sample, "sample")
    yield f"ran: {', '.join(counts)}, {clock.seconds:.1f} s"
    if not failed:  # After an error of the device, reading a metric would fail again.
        for name, value in sorted(run.metrics.items()):
            yield f"{name}: {number(value)}"
    for failure in run.callbacks.disabled:
        yield f"switched off: {failure}"


# ------------------------------------------------------------------------------------ records


@contextmanager
def _records_kept(log: LogText) -> Iterator[None]:
    """Write records of Hookline's logger to the file, even if no handler shows them.

    This is a filter and not a handler: Python shows warnings of a logger by default only while it has no
    handler.
    """
    logger, keep = logging.getLogger("hookline"), _Records(log)
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


class _Records(logging.Filter):
    """Filter that passes every record.

    A record on the console reaches the file through the tee, and is not written twice.
    """

    def __init__(self, log: LogText) -> None:
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # A record may hold objects that cannot be formatted.
            if not _is_shown(record):
                self._log.keep(f"{record.levelname} {logging.Formatter().format(copy(record))}")
        return True


def _is_shown(record: logging.LogRecord) -> bool:
    """True if a handler writes the record to standard output or standard error."""
    handlers = []
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        handlers += logger.handlers
        logger = logger.parent if logger.propagate else None
    last: list[Any] = [] if logging.lastResort is None else [logging.lastResort]
    return any(record.levelno >= handler.level and isinstance(_stream(handler), Tee) for handler in handlers or last)


def _stream(handler: Any) -> Any:
    """Return the stream of a handler.

    Handlers of ``logging`` have a stream, those of rich a console.
    """
    return getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
