"""A list of a thousand runs: how long it takes to open, against reading the files of the runs once."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from report_size import _sample_runs
from table import Figure, Section, verdict

from hookline.records.run_file import RunFile
from hookline.report.serve_site import WatchedSite

MOST_TIMES = 3.0
DIFFERENT, ROWS = 20, 600


def run_list(count: int, times: int) -> Section:
    with TemporaryDirectory() as place:
        folder = Path(place)
        _make(folder, count)
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        rounds = [(_timed(lambda: _read(files)), _timed(lambda: _parse(files)), *_open(folder)) for _ in range(times)]
    read, parsed, opened, again = (statistics.median(column) for column in zip(*rounds, strict=True))
    spread = [one[2] / one[1] for one in rounds]
    figures = [
        Figure(f"reading the files, {size / 1e6:.0f} MB", f"{1000 * read:.0f} ms"),
        Figure("reading and parsing each line once", f"{1000 * parsed:.0f} ms"),
        Figure(
            f"opening the list of {count:,} runs",
            f"{opened / parsed:.2f} times",
            f"{1000 * opened:.0f} ms; {min(spread):.2f} to {max(spread):.2f}; {opened / read:.1f} times the bytes",
            f"< {MOST_TIMES:g} times",
            verdict(opened / parsed < MOST_TIMES),
        ),
        Figure("asking again, when nothing has changed", f"{1000 * again:.0f} ms"),
    ]
    return Section(
        "A list of runs",
        figures,
        f"The runs of hookline watch and hookline ls, {ROWS} rows each. The files are in the cache of the system. "
        f"Opening is compared with reading each file and parsing each line as JSON, once. Medians of {times}.",
    )


def _make(folder: Path, count: int) -> None:
    samples = _sample_runs()
    for number in range(count):
        run = folder / "cifar" / f"r{number:04d}"
        if number < DIFFERENT:
            samples.make_run(run, ROWS, seed=number, media=False, config={"lr": 0.1 / (1 + number % 3)})
        else:
            shutil.copytree(folder / "cifar" / f"r{number % DIFFERENT:04d}", run)
            replace(RunFile.read(run), name=run.name).write(run)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _read(files: list[Path]) -> int:
    return sum(len(path.read_bytes()) for path in files)


def _parse(files: list[Path]) -> None:
    for path in files:
        text = path.read_bytes()
        for part in [text] if path.suffix == ".json" else text.splitlines():
            json.loads(part)


def _open(folder: Path) -> tuple[float, float]:
    site = WatchedSite(folder)
    return _timed(lambda: site.answer("/", {})), _timed(lambda: site.answer("/data", {}))
