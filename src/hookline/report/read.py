"""Reads a run's folder: ``run.json``, ``metrics.jsonl`` and ``events.jsonl``, whole or while they are being written."""

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
"""So many bytes are parsed together."""


@dataclass(frozen=True, slots=True)
class RunData:
    """All that the page needs of one run. Whatever is missing is empty."""

    folder: Path
    file: RunFile | None = None
    trouble: str = ""
    """Why there is no ``file``."""
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
    """Lines that say nothing."""
    written: float = 0.0
    """When the newest row came, in seconds since 1970; 0 if there is none."""
    gone: bool = False
    """Whether ``file`` says that it runs, and its process is no longer there."""

    @property
    def title(self) -> str:
        return f"{self.file.project}/{self.file.name}" if self.file else self.folder.absolute().name


def is_run(folder: Path) -> bool:
    """Whether there is something to read."""
    return (folder / METRICS).is_file() or (folder / FILE).is_file()


def read_run(folder: Path) -> RunData:
    """All of a run; ``SetupError`` if the folder holds none."""
    return RunReader(folder).read()


class RunReader:
    """Reads a run, and later only what is new: ``read()`` again and again, from one thread at a time.

    What ``read`` returns shares its columns with the reader: use it before the next ``read``.

    >>> RunReader(Path("no/such/folder")).read()
    Traceback (most recent call last):
    hookline.errors.SetupError: no/such/folder is no run: there is no such folder
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

    A line that is not whole yet is left for the next time. A file that was rewound (the run went on from an earlier
    step) is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start_again()

    def _start_again(self) -> None:
        self.rows = Rows()
        self._offset = 0
        self._end = b""

    def read(self) -> float:
        """Read what is new; when the file was written to. ``SetupError`` if it is there and cannot be read."""
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
            raise SetupError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether the last line that was read is still in its place."""
        file.seek(self._offset - len(self._end))
        return file.read(len(self._end)) == self._end


def _whole_lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines, some thousand at a time; not the last one if it is still being written."""
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
    """Whether a run has ended without a word. One that ends just now has written how by the time its lock is free."""
    if file is None or file.status != "running" or not is_free(folder):
        return False
    now, _ = _run_file(folder)
    return now is not None and now.status == "running"


def _refuse_no_run(folder: Path) -> None:
    if not folder.is_dir():
        what = "it is a file; give the run's folder" if folder.exists() else "there is no such folder"
        raise SetupError(f"{folder} is no run: {what}")
    if is_run(folder):
        return
    runs = sorted(path.parent for path in [*folder.glob(f"*/{METRICS}"), *folder.glob(f"*/*/{METRICS}")])
    if runs:
        raise SetupError(f"{folder} holds runs and is none: give one of them, such as {runs[-1]}")
    raise SetupError(f"{folder} is no run: it has neither {METRICS} nor {FILE}; give the folder of a run")
