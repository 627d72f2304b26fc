"""``LogFile``: the console output of a run in ``log.txt``."""

from __future__ import annotations

import logging
import math
import os
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.callbacks._text import format_metric
from hookline.callbacks.watch.progress import styles
from hookline.callbacks.watch.progress.following import Following, closing
from hookline.callbacks.watch.progress.redirect import LONGEST, Tee, kept
from hookline.callbacks.watch.progress_bar import ProgressBar
from hookline.events import Callback
from hookline.progress.counted import counted
from hookline.records.redact import redact_text

if TYPE_CHECKING:
    from hookline.run import Run

MAX_BYTES: Final = 50_000_000
"""Size of the file in bytes at which output of the program is left out."""
FULL: Final = "==== this file has {} MB: what the program prints is left out from here on ===="

_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # Colors and cursor movement.
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # Titles and links.
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


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
            self._write("".join(traceback.format_exception(run.exception)).rstrip())

    @closing
    def on_teardown(self, run: Run) -> None:
        self._show_end(run)
        if self._log is not None:
            self._begin(run)
            self._unwatch()  # An unfinished last line must come before the summary.
            self._write("\n".join(_summary(run, failed=self._failed)))
        self._close()

    def _style(self, run: Run) -> styles.Style | None:
        if self._log is None:
            return None
        self._begin(run)  # The callback may have been added during the run.
        return styles.plain(self._write)

    def _begin(self, run: Run) -> None:
        """Write the heading of this call, once."""
        if self._log is not None:
            name = f"{run.project}/{run.name}"
            goes_on = self._log.goes_on or run.clock.step > 0
            self._log.begin(f"{name} continues at step {run.clock.step}" if goes_on else f"{name} begins")

    def _write(self, text: str) -> None:
        """Write a line, and raise any error since the last call, also from a captured print."""
        if self._log is not None:
            self._log.write_text(text)
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
            yield f"{name}: {format_metric(value)}"
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


class LogText:
    """Append lines to a file without raising errors.

    ``error`` keeps the first error, after which nothing is written. All methods may be called from any thread
    and from the workers of a loader: every write appends complete lines. Lines before ``begin`` are held back,
    so that they appear below the heading.
    """

    def __init__(self, path: Path) -> None:
        self.error: Exception | None = None
        self._file = path.open("a+b", buffering=0)
        self.goes_on = self._size() > 0
        # The machine may have crashed in the middle of a line.
        self._torn = self.goes_on and self._last_byte() != b"\n"
        self._held: list[str] | None = []

    def begin(self, heading: str) -> None:
        """Write the heading, once, and the lines that were held back."""
        held, self._held = self._held, None
        if held is None:
            return
        self._append(("\n" if self._torn else "") + _lines(f"==== {heading} ===="))
        if self.goes_on and self._size() >= MAX_BYTES:
            self.write_text(_full())
        for lines in held:
            self._append(lines)

    def write_text(self, text: str) -> None:
        """Write text of Hookline. It is short, so the size limit does not apply."""
        self._write(text, limited=False)

    def keep(self, text: str) -> None:
        """Write output of the program, up to the size limit."""
        self._write(text, limited=True)

    def close(self) -> None:
        self.begin("begins")  # This does nothing if the heading was written.
        self._file.close()

    def _write(self, text: str, *, limited: bool) -> None:
        """Format the text, and append it or hold it back."""
        try:
            lines = _lines(text)
        except Exception as error:  # print must not fail, whatever its arguments are.
            self.error = self.error or error
        else:
            if self._held is not None:
                self._held.append(lines)
            else:
                self._append(lines, limited=limited)

    def _append(self, lines: str, *, limited: bool = False) -> None:
        """Append lines, unless the file is full or has failed."""
        if self.error is not None:
            return
        try:
            data = lines.encode("utf-8", "replace")
            room = MAX_BYTES - self._size() if limited else len(data)
            if room <= 0:
                return
            if len(data) > room:  # The write that fills the file adds the notice.
                data = f"{data[:room].decode('utf-8', 'ignore')}\n{_lines(_full())}".encode()
            self._file.write(data)
        except (OSError, ValueError) as error:  # The disk is full, or the file is closed.
            self.error = error

    def _size(self) -> int:
        """Return the size of the file, including what the workers of a loader have written."""
        return os.fstat(self._file.fileno()).st_size

    def _last_byte(self) -> bytes:
        """Return the last byte of the file."""
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1)


def _lines(text: str) -> str:
    """Return the lines with the current time, without secrets and terminal codes."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = redact_text(plain_text(text)).split("\n")
    return "".join(f"{stamp} {line}".rstrip() + "\n" for line in lines)


def _full() -> str:
    """Return the line that says that the file is full."""
    return FULL.format(f"{MAX_BYTES / 1e6:g}")


def plain_text(text: str) -> str:
    r"""Return text without terminal codes and control characters. Very long lines are cut.

    Example:
        >>> plain_text("\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link\x1b]8;;\x07\x08\n")
        'red link\n'
    """
    lines = _CODES.sub("", text).split("\n")
    return "\n".join(
        line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line) - LONGEST:,} more characters)"
        for line in lines
    )
