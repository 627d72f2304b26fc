"""The runs under a folder and their status, for the first page of ``hookline watch``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hookline.records import MetricRow, from_json
from hookline.records.chosen import choose_metrics
from hookline.records.regular_file import open_regular
from hookline.records.run_file import FILE, RunFile
from hookline.report.about import facts_of, status_of
from hookline.report.clock import STAGES
from hookline.report.leaderboard import Standing, matters, progress_of, settings_of_file, time_left
from hookline.report.lock import is_free
from hookline.report.read import EVENTS, METRICS, RunData, is_gone, is_run

FILES = (FILE, METRICS, EVENTS)
DEPTH = 3
"""Maximum depth of a run below the given folder. ``runs/project/name`` has depth two."""
TAIL = 1 << 16
"""Number of bytes at the end of a file to read first: there may be hundreds of large files."""
SHOWN = 4
ORDER = ("val/", "test/", "train/")
_ROW = re.compile(rb'^(\{"name": "[^"\\]*")(.*)$', re.MULTILINE)
"""A row of a metric as Hookline writes it: the name, and the rest."""


class Runs:
    """Find runs and assign them opaque names.

    A client can only name runs that were found here. Runs outside the folder, for example behind a symbolic link, are
    not found.

    Args:
        folder: The folder to search.

    Example:
        >>> Runs(Path("no/such/folder")).find()
        {}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._known: dict[str, Path] = {}

    def find(self) -> dict[str, Path]:
        """Return all current runs by name."""
        found = {self._name(folder): folder for folder in self._walk(self.folder, 0)}
        self._known = found
        return found

    def get(self, name: str) -> Path | None:
        """Return the folder of a run, or ``None`` if the run does not exist."""
        folder = self._known.get(name) or self.find().get(name)
        return folder if folder is not None and self._inside(folder) and self._is_run(folder) else None

    def _name(self, folder: Path) -> str:
        return blake2b(os.fsencode(folder.relative_to(self.folder)), digest_size=8).hexdigest()

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        if self._is_run(folder):
            yield folder
        elif depth < DEPTH:
            with suppress(OSError), os.scandir(folder) as entries:  # The folder may be deleted or not readable.
                for entry in sorted(entries, key=lambda entry: entry.name):
                    below = Path(entry.path)
                    if not entry.is_symlink() and entry.is_dir():
                        yield from self._walk(below, depth + 1)
                    elif entry.is_dir() and self._inside(below):
                        yield from self._walk(below.resolve(), depth + 1)

    def _is_run(self, folder: Path) -> bool:
        """True if a folder inside has the files of a run, of which none is a link out of the folder of all runs."""
        links = [path for path in (f"{folder}/{file}" for file in FILES) if os.path.islink(path)]
        return is_run(folder) and all(self._inside(Path(path)) for path in links)

    def _inside(self, path: Path) -> bool:
        try:
            return path.resolve(strict=True).is_relative_to(self.folder)
        except (OSError, RuntimeError):  # The path does not exist, or its links form a cycle.
            return False


def stamp(folder: Path) -> str:
    """Return a string that changes whenever a file of the run changes."""
    found = []
    for file in FILES:
        try:
            about = os.stat(f"{folder}/{file}")
            found.append(f"{about.st_mtime_ns:x}.{about.st_size:x}.{about.st_ino:x}")
        except OSError:
            found.append("")
    return ".".join(found)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in the list of runs."""

    id: str
    project: str
    name: str
    status: str
    label: str
    """The status for display."""
    reason: str
    step: int
    epoch: int
    goal: dict[str, Any] | None
    """Target of the run: see ``goal_of``."""
    standing: Standing
    """The run in the leaderboard."""
    metrics: dict[str, str]
    """Newest values of a few metrics: monitored metrics first, then evaluations."""
    written: float
    """Time of the newest row in seconds since 1970. 0 without rows."""


class Glance:
    """Follow the end of one run's ``metrics.jsonl``, without the earlier rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._stamp = ""
        self._summary: Summary | None = None
        self._start_over()

    def _start_over(self) -> None:
        self._offset: int | None = None
        self._before = b""
        self._at, self._of_loop, self._seconds = (0, 0), False, 0.0
        self._values: dict[str, tuple[bool, float]] = {}

    def look(self) -> Summary:
        """Return the current summary of the run."""
        now = stamp(self.folder)
        if self._summary is None or now != self._stamp or self._has_gone():
            self._summary = self._look()
        self._stamp = now
        return self._summary

    def _has_gone(self) -> bool:
        """Return True if a running run was killed, which does not change its files."""
        return self._summary is not None and self._summary.status == "running" and is_free(self.folder)

    def _look(self) -> Summary:
        written, file = 0.0, None
        with suppress(OSError):
            written = self._read()
        with suppress(OSError, ValueError, RecursionError):
            file = RunFile.read(self.folder)
        try:
            about = RunData(self.folder, file, gone=is_gone(self.folder, file))
            status, facts = status_of(about), facts_of(about)
        except (TypeError, ValueError, AttributeError):  # Another program wrote run.json; still list the other runs.
            about = RunData(self.folder)
            status, facts = status_of(about), facts_of(about)
        monitored = () if file is None else file.monitored
        shown = [name for name in self._values if name in monitored or matters(name, self._values)]
        names = sorted(shown, key=self._place)
        chosen = choose_metrics(names, monitored, {"": SHOWN})
        return Summary(
            self.name,
            str(facts["project"]),
            str(facts["name"]) or self.folder.name,
            status["key"],
            status["label"],
            status["reason"],
            facts["steps"] if facts["ended"] else max(self._at[0], facts["steps"]),
            facts["epochs"] if facts["ended"] else max(self._at[1], facts["epochs"]),
            facts["goal"],
            self._standing(status, facts, {name: self._values[name][1] for name in names}, file),
            {name: f"{self._values[name][1]:.4g}" for name in chosen[:SHOWN]},
            written,
        )

    def _standing(
        self, status: dict[str, Any], facts: dict[str, Any], values: dict[str, float], file: RunFile | None
    ) -> Standing:
        step, epoch, seconds = facts["steps"], facts["epochs"], facts["seconds"]
        if not facts["ended"]:
            step, epoch, seconds = max(self._at[0], step), max(self._at[1], epoch), max(self._seconds, seconds)
        reached = {"steps": step, "epochs": epoch, "seconds": seconds}
        progress = progress_of(facts["goal"], reached, status["key"])
        left = time_left(progress, seconds, status["key"])
        settings = settings_of_file(file)
        return Standing(status["key"], status["label"], step, epoch, seconds, progress, left, values, settings)

    def _place(self, name: str) -> tuple[bool, int, bool, str]:
        evaluated, _ = self._values[name]
        stage = next((place for place, stage in enumerate(ORDER) if name.startswith(stage)), len(ORDER))
        return not evaluated, stage, name.rpartition("/")[2] != "loss", name

    def _read(self) -> float:
        path = self.folder / METRICS
        with open_regular(path) as file:
            if self._offset is not None and not self._goes_on(file):
                self._start_over()
            start = self._offset
            if start is None:
                start = max(0, os.fstat(file.fileno()).st_size - TAIL)
                file.seek(start)
                if start:
                    start += len(file.readline())  # Skip the incomplete first line.
            file.seek(start)
            data, written = file.read(), os.fstat(file.fileno()).st_mtime
        whole = data.rfind(b"\n") + 1  # The last line may still be incomplete.
        for line in _newest_lines(data[:whole]):
            self._take(line)
        self._offset, self._before = start + whole, (self._before + data[:whole])[-256:]
        return written

    def _goes_on(self, file: Any) -> bool:
        """Return True if the bytes before the offset are unchanged: a resumed run truncates them."""
        file.seek((self._offset or 0) - len(self._before))
        return bool(file.read(len(self._before)) == self._before)

    def _take(self, line: bytes) -> None:
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            row = from_json(line.decode())
            if isinstance(row, MetricRow) and isinstance(row.value, int | float):
                self._values[str(row.name)] = (row.kind == "eval", float(row.value))
                of_loop = row.name.startswith(STAGES)  # Other metrics may have their own steps.
                if of_loop or not self._of_loop:
                    self._at, self._of_loop = (int(row.step), int(row.epoch)), of_loop
                    self._seconds = float(row.seconds)


def _newest_lines(data: bytes) -> list[bytes]:
    """Return the last row of each metric, in the order of the file.

    A list of runs has hundreds of thousands of rows at its start, so most of them are not parsed. If another program
    wrote the file in another form, all lines are returned.
    """
    rows: list[tuple[bytes, bytes]] = _ROW.findall(data)
    if data.count(b"\n") > len(rows) + data.count(b'\n{"kind": ') + 1:  # The first line has no line break before it.
        return data.splitlines()
    return sorted((name + rest for name, rest in dict(rows).items() if b'"value": [' not in rest), key=data.rfind)
