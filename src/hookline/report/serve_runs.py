"""The runs under a folder, and how each of them stands: what the first page of ``hookline watch`` shows."""

from __future__ import annotations

import os
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
from hookline.report.charts import MACHINE, is_epoch
from hookline.report.clock import STAGES
from hookline.report.lock import is_free
from hookline.report.read import EVENTS, METRICS, RunData, is_gone, is_run

FILES = (FILE, METRICS, EVENTS)
DEPTH = 3
"""So many folders below the given one a run may lie; ``runs/project/name`` is two."""
TAIL = 1 << 16
"""Of a file that was never read, so many bytes at its end are: there may be hundreds of files of any size."""
SHOWN = 4
ORDER = ("val/", "test/", "train/")


class Runs:
    """Finds runs by names that tell a client nothing, and that only what was found here has.

    What lies outside of the folder, if only by a symbolic link, is not found.

    >>> Runs(Path("no/such/folder")).find()
    {}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._known: dict[str, Path] = {}

    def find(self) -> dict[str, Path]:
        """All runs there are now."""
        found = {self._name(folder): folder for folder in self._walk(self.folder, 0)}
        self._known = found
        return found

    def get(self, name: str) -> Path | None:
        """The folder of one run, as long as there is one."""
        folder = self._known.get(name) or self.find().get(name)
        return folder if folder is not None and self._is_run(folder) else None

    def _name(self, folder: Path) -> str:
        return blake2b(os.fsencode(folder.relative_to(self.folder)), digest_size=8).hexdigest()

    def _walk(self, folder: Path, depth: int) -> Iterator[Path]:
        if self._is_run(folder):
            yield folder
        elif depth < DEPTH:
            with suppress(OSError), os.scandir(folder) as entries:  # it may be gone by now, or not ours to read
                for entry in sorted(entries, key=lambda entry: entry.name):
                    below = Path(entry.path)
                    if entry.is_dir() and (not entry.is_symlink() or self._inside(below)):
                        yield from self._walk(below.resolve(), depth + 1)

    def _is_run(self, folder: Path) -> bool:
        files = [folder / file for file in FILES if os.path.lexists(folder / file)]
        return is_run(folder) and all(self._inside(path) for path in (folder, *files))

    def _inside(self, path: Path) -> bool:
        try:
            return path.resolve(strict=True).is_relative_to(self.folder)
        except (OSError, RuntimeError):  # gone, or a circle of links
            return False


def stamp(folder: Path) -> str:
    """Another one whenever a file of the run has changed."""
    found = []
    for file in FILES:
        try:
            about = os.stat(folder / file)
            found.append(f"{about.st_mtime_ns:x}.{about.st_size:x}.{about.st_ino:x}")
        except OSError:
            found.append("")
    return ".".join(found)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in one line."""

    id: str
    project: str
    name: str
    status: str
    label: str
    """The status, for people."""
    reason: str
    step: int
    epoch: int
    goal: dict[str, Any] | None
    """How far it is to go: see ``goal_of``."""
    metrics: dict[str, str]
    """The newest values of a few of them: what callbacks monitor first, then evaluations."""
    written: float
    """When the newest row came, in seconds since 1970; 0 if none did."""


class Glance:
    """Follows the end of one run's ``metrics.jsonl``, without the rows before."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._stamp = ""
        self._summary: Summary | None = None
        self._forget()

    def _forget(self) -> None:
        self._offset: int | None = None
        self._before = b""
        self._at, self._of_loop = (0, 0), False
        self._values: dict[str, tuple[bool, float]] = {}

    def look(self) -> Summary:
        """How the run stands now."""
        now = stamp(self.folder)
        if self._summary is None or now != self._stamp or self._has_gone():
            self._summary = self._look()
        self._stamp = now
        return self._summary

    def _has_gone(self) -> bool:
        """A run that is killed leaves its files as they are."""
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
        except (TypeError, ValueError, AttributeError):  # not written by us; it must not hide the others
            about = RunData(self.folder)
            status, facts = status_of(about), facts_of(about)
        monitored = () if file is None else file.monitored
        names = sorted((name for name in self._values if self._matters(name) or name in monitored), key=self._place)
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
            {name: f"{self._values[name][1]:.4g}" for name in chosen[:SHOWN]},
            written,
        )

    def _matters(self, name: str) -> bool:
        """Not the same twice, and not how fast the machine is."""
        return not is_epoch(name, self._values) and name.partition("/")[0] not in MACHINE

    def _place(self, name: str) -> tuple[bool, int, bool, str]:
        evaluated, _ = self._values[name]
        stage = next((place for place, stage in enumerate(ORDER) if name.startswith(stage)), len(ORDER))
        return not evaluated, stage, name.rpartition("/")[2] != "loss", name

    def _read(self) -> float:
        path = self.folder / METRICS
        with open_regular(path) as file:
            if self._offset is not None and not self._goes_on(file):
                self._forget()
            start = self._offset
            if start is None:
                start = max(0, os.fstat(file.fileno()).st_size - TAIL)
                file.seek(start)
                if start:
                    start += len(file.readline())  # the part of a line
            file.seek(start)
            data = file.read()
        whole = data.rfind(b"\n") + 1  # the last line may be in the making
        for line in data[:whole].splitlines():
            self._take(line)
        self._offset, self._before = start + whole, (self._before + data[:whole])[-256:]
        return path.stat().st_mtime

    def _goes_on(self, file: Any) -> bool:
        """Whether the end of what was read is still there: a resumed run takes its file back to an earlier step."""
        file.seek((self._offset or 0) - len(self._before))
        return bool(file.read(len(self._before)) == self._before)

    def _take(self, line: bytes) -> None:
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            row = from_json(line.decode())
            if isinstance(row, MetricRow) and isinstance(row.value, int | float):
                self._values[str(row.name)] = (row.kind == "eval", float(row.value))
                of_loop = row.name.startswith(STAGES)  # others may have steps of their own
                if of_loop or not self._of_loop:
                    self._at, self._of_loop = (int(row.step), int(row.epoch)), of_loop
