"""Read the files in a run's folder, also while the run writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hookline.errors import SetupError
from hookline.records import FileRow, HistogramRow, ImageRow, MetricRow, TableRow, TextRow
from hookline.records.regular_file import open_regular
from hookline.records.run_file import FILE, RunFile
from hookline.report.kept import Kept
from hookline.report.lock import is_free
from hookline.report.rows import Happened, Rows
from hookline.report.series import Series

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
AT_ONCE = 1 << 18
"""Number of bytes to parse at a time."""


@dataclass(frozen=True, slots=True)
class RunData:
    """All data of one run that a page needs. Missing parts are empty."""

    folder: Path
    file: RunFile | None = None
    trouble: str = ""
    """Reason why ``file`` is ``None``."""
    series: Mapping[str, Series] = field(default_factory=dict)
    arrays: Mapping[str, Kept[MetricRow]] = field(default_factory=dict)
    images: Mapping[str, Kept[ImageRow]] = field(default_factory=dict)
    texts: Mapping[str, Kept[TextRow]] = field(default_factory=dict)
    tables: Mapping[str, Kept[TableRow]] = field(default_factory=dict)
    histograms: Mapping[str, Kept[HistogramRow]] = field(default_factory=dict)
    files: Mapping[str, Kept[FileRow]] = field(default_factory=dict)
    events: Mapping[str, Kept[Happened]] = field(default_factory=dict)
    rows: int = 0
    damaged: int = 0
    """Number of invalid lines."""
    written: float = 0.0
    """Time of the newest row in seconds since 1970. 0 without rows."""
    gone: bool = False
    """True if the status is ``running`` but the process no longer exists."""

    @property
    def title(self) -> str:
        return f"{self.file.project}/{self.file.name}" if self.file else self.folder.absolute().name


def is_run(folder: Path) -> bool:
    """Return True if the folder contains the files of a run.

    Args:
        folder: The folder.
    """
    return (folder / METRICS).is_file() or (folder / FILE).is_file()


def read_run(folder: Path) -> RunData:
    """Return all data of a run.

    Args:
        folder: The run's folder.

    Raises:
        SetupError: If the folder is not a run, or a file cannot be read.
    """
    return RunReader(folder).read()


class RunReader:
    """Read a run, and with each further ``read()`` only the new rows.

    Use a reader in one thread at a time.

    The data from ``read`` shares memory with the reader: use it before the next ``read``.

    Args:
        folder: The run's folder.

    Example:
        >>> RunReader(Path("no/such/folder")).read()
        Traceback (most recent call last):
        hookline.errors.SetupError: no/such/folder is not a run: the folder does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics, self._events = _RowFile(folder / METRICS), _RowFile(folder / EVENTS)

    def read(self) -> RunData:
        _refuse_no_run(self.folder)
        written = max(self._metrics.read(), self._events.read())
        file, trouble = _run_file(self.folder)
        rows, happened = self._metrics.rows, self._events.rows
        return RunData(
            self.folder,
            file,
            trouble,
            rows.series,
            rows.arrays,
            rows.images,
            rows.texts,
            rows.tables,
            rows.histograms,
            rows.files,
            {**rows.events, **happened.events},
            rows.count + happened.count,
            rows.damaged + happened.damaged,
            written,
            is_gone(self.folder, file),
        )


class _RowFile:
    """The rows of one file, as far as it was read.

    An incomplete last line is left for the next read. A file that was truncated, because the run resumed from an
    earlier step, is read from the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start_again()

    def _start_again(self) -> None:
        self.rows = Rows()
        self._offset = 0
        self._end = b""

    def read(self) -> float:
        """Read the new rows and return the modification time of the file.

        Raises:
            SetupError: If the file exists and cannot be read.
        """
        try:
            with open_regular(self.path) as file:
                if not self._goes_on(file):
                    self._start_again()
                file.seek(self._offset)
                for lines in _whole_lines(file):
                    self.rows.take([line.decode("utf-8", "replace") for line in lines])
                    self._offset += sum(map(len, lines))
                    self._end = lines[-1][-80:]
            return self.path.stat().st_mtime
        except FileNotFoundError:
            self._start_again()
            return 0.0
        except OSError as error:
            raise SetupError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def _goes_on(self, file: BinaryIO) -> bool:
        """Return True if the last line that was read is still at its position."""
        file.seek(self._offset - len(self._end))
        return file.read(len(self._end)) == self._end


def _whole_lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield complete lines, a few thousand at a time, without an incomplete last line."""
    while lines := file.readlines(AT_ONCE):
        if not lines[-1].endswith(b"\n") and not _is_json(lines[-1]):
            lines.pop()
        if lines:
            yield lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _run_file(folder: Path) -> tuple[RunFile | None, str]:
    try:
        return RunFile.read(folder), ""
    except FileNotFoundError:
        return None, f"{FILE} is missing"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{FILE} cannot be read: {error}"


def is_gone(folder: Path, file: RunFile | None) -> bool:
    """Return True if the process of a run ended without recording a status.

    ``run.json`` is read again, because a run that is ending writes its status before it releases the lock.
    """
    if file is None or file.status != "running" or not is_free(folder):
        return False
    now, _ = _run_file(folder)
    return now is not None and now.status == "running"


def _refuse_no_run(folder: Path) -> None:
    if not folder.is_dir():
        what = "it is a file. Give the run's folder." if folder.exists() else "the folder does not exist."
        raise SetupError(f"{folder} is not a run: {what}")
    if is_run(folder):
        return
    runs = sorted(path.parent for path in [*folder.glob(f"*/{METRICS}"), *folder.glob(f"*/*/{METRICS}")])
    if runs:
        raise SetupError(f"{folder} contains runs, but is not a run. Give one, such as {runs[-1]}.")
    raise SetupError(f"{folder} is not a run: it has neither {METRICS} nor {FILE}. Give the folder of a run.")
