"""The pages: the report of a run, and the comparison of several runs."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hookline import __version__
from hookline.records.direction import known_direction
from hookline.records.regular_file import open_regular
from hookline.report.about import costs_of, events_of, facts_of, put_back_of, sessions_of, settings_of, status_of
from hookline.report.charts import MACHINE, Chart, by_name, curve, join_equal, plan, section_title, share
from hookline.report.clock import clock_of, of_the_loop
from hookline.report.compare import ABSENT, Difference, Differences, differing_metrics, differing_settings
from hookline.report.document import document, embedded
from hookline.report.fallback import fallback
from hookline.report.fit import MAX_ITEMS, cut, cut_apart
from hookline.report.leaderboard import board_of, progress_of, row_of, standing_of, time_left
from hookline.report.media import OTHERS, media_of, summary_of
from hookline.report.numbers import exact, numbers_of, tiles_of
from hookline.report.read import RunData, read_run
from hookline.report.units import unit_of

FILE = "report.html"
LARGEST = 4_500_000
"""Maximum number of characters of data per page. Images use the remaining budget."""
NUMBERS = 2_000
"""Maximum number of rows in the table of metrics."""
HEAD = 4000
"""Number of bytes at the start of a page that contain its title."""
Page = dict[str, Any]
"""All data of a page, as plain values."""


@dataclass(frozen=True, slots=True)
class Live:
    """A page that requests new data from ``url`` every ``every`` seconds.

    The page adds ``since=<version>`` to the address. The response is the page's data with a new ``version``, or only
    ``{"version": …}`` if nothing has changed.
    """

    url: str
    version: str = ""
    every: float = 2.0
    home: str | None = None
    """Address of the list of all runs."""
    run: str = ""
    """The id of the run that the page can control."""
    control: str = ""
    """Token of requests that control the run. Without it, the page has no buttons for that."""


# -- one run ---------------------------------------------------------------------------------------


def render_report(run: RunData, live: Live | None = None) -> str:
    """Return the report of a run as one HTML file.

    Args:
        run: The run.
        live: Settings of a page that updates itself.
    """
    return render(page_data(run), live)


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a run, atomically.

    Args:
        folder: The run's folder.

    Returns:
        The path of the report.

    Raises:
        SetupError: If the folder is not a run.
    """
    return write(render_report(read_run(folder)), folder / FILE)


def page_data(run: RunData) -> Page:
    """Return the data of the report.

    Args:
        run: The run.
    """
    numbers, limit, facts = numbers_of(run.series), share(len(run.series)), facts_of(run)
    back, status = put_back_of(run), status_of(run)
    progress = progress_of(facts["goal"], facts, status["key"])
    facts["left"] = time_left(progress, facts["seconds"], status["key"])
    data = {
        "page": "report",
        "title": run.title,
        "status": {**status, "put_back": back.text if back else ""},
        "facts": facts,
        "notes": [*_trouble(run), *_thinned([run], limit)],
        "tiles": tiles_of(run.series, numbers, back.step, back.seconds) if back else tiles_of(run.series, numbers),
        "numbers": numbers[:NUMBERS],
        "metrics": len(numbers),
        "runs": [{"title": run.title, "facts": facts}],
        "charts": [_chart(chart, [0]) for chart in join_equal(plan(run.series), run.series)],
        "clocks": [clock_of(of_the_loop(run.series))],
        "curves": [_curves(run, limit)],
        "events": events_of(run),
        "sessions": sessions_of(run),
        "costs": costs_of(run),
        "summary": summary_of(run),
        "settings": settings_of(run),
        "files": [
            {"name": cut(name), "file": cut(rows.newest.file), "size": rows.newest.size, "step": rows.newest.step}
            for name, rows in sorted(run.files.items())[:MAX_ITEMS]
        ],
        "more_files": max(0, len(run.files) - MAX_ITEMS),
    }
    return data | media_of(run, LARGEST - 4 * OTHERS - len(embedded(data)))


def _trouble(run: RunData) -> list[str]:
    """Return notes about files and lines that could not be read."""
    notes = [f"{run.trouble}. Settings, costs and environment are unknown."] if run.trouble else []
    if run.damaged:
        lines = "1 line" if run.damaged == 1 else f"{run.damaged:,} lines"
        notes.append(f"{lines} of metrics.jsonl or events.jsonl could not be read.")
    return notes


def _thinned(runs: Sequence[RunData], limit: int) -> list[str]:
    """Return a note if not every value is drawn."""
    if all(len(series) <= limit for run in runs for series in run.series.values()):
        return []
    return [
        f"Curves show at most {limit:,} points: the first, lowest, highest and last value of each group of values, so "
        f"no extreme is lost. All {sum(run.rows for run in runs):,} rows are in metrics.jsonl."
    ]


# -- several runs ------------------------------------------------------------------------------------


def render_compare(runs: Sequence[RunData], live: Live | None = None) -> str:
    """Return the comparison of several runs as one HTML file.

    Args:
        runs: The runs to compare.
        live: Settings of a page that updates itself.
    """
    return render(compare_data(runs), live)


def compare_data(runs: Sequence[RunData]) -> Page:
    """Return the data of the comparison.

    Args:
        runs: The runs to compare.
    """
    names = sorted({name for run in runs for name in run.series})
    having = {name: [place for place, run in enumerate(runs) if name in run.series] for name in names}
    limit = share(sum(len(run.series) for run in runs))
    named = list(zip(titles(runs), runs, strict=True))
    standings = [standing_of(run) for run in runs]
    board = board_of([standing.values for standing in standings], [standing.settings for standing in standings])
    return {
        "page": "compare",
        "title": f"{len(runs)} runs",
        "project": common_project(runs),
        "notes": [*(f"{title}: {note}" for title, run in named for note in _trouble(run)), *_thinned(runs, limit)],
        "board": board,
        "runs": [
            _compared(title, run) | row_of(standing, board)
            for (title, run), standing in zip(named, standings, strict=True)
        ],
        "charts": [_chart(chart, having[chart.title]) for chart in by_name(names)],
        "clocks": [clock_of(of_the_loop(run.series)) for run in runs],
        "curves": [_curves(run, limit) for run in runs],
        "settings": _differences(differing_settings(runs), lambda _: None),
        "metrics": _differences(differing_metrics(runs), known_direction),
    }


def _compared(title: str, run: RunData) -> dict[str, Any]:
    back = put_back_of(run)
    return {
        "title": title,
        "status": status_of(run),
        "facts": facts_of(run),
        "put_back": back.text if back else "",
    }


def is_comparison(path: Path) -> bool:
    """Return True if a file can be read and starts like the HTML of ``render_compare``."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD).decode("utf-8", "replace")
            return re.search(r"<title>\d+ runs · Hookline</title>", head) is not None
    except OSError:
        return False


def common_project(runs: Sequence[RunData]) -> str:
    """Return the project of all runs, or an empty string if they differ."""
    found = {run.file.project if run.file else "" for run in runs}
    return found.pop() if len(found) == 1 else ""


def titles(runs: Sequence[RunData]) -> list[str]:
    """Return distinct titles of the runs, without the project if all runs have the same."""
    short = common_project(runs)
    found = [run.file.name if short and run.file else run.title for run in runs]
    return told_apart(found, [run.folder for run in runs])


def told_apart(titles: Sequence[str], folders: Sequence[Path], above: Path | None = None) -> list[str]:
    """Add the path of the run to titles that occur more than once.

    Args:
        titles: The titles.
        folders: The runs' folders.
        above: Folder to which the paths are relative. By default the common parent of all runs.
    """
    paths = [os.path.abspath(folder) for folder in folders]
    start = os.path.commonpath(paths) if above is None and paths else os.path.abspath(above or ".")
    counts = Counter(titles)
    return [
        title if counts[title] == 1 else f"{title} ({os.path.relpath(path, start)})"
        for title, path in zip(titles, paths, strict=True)
    ]


def _differences(found: Differences, mode: Callable[[str], str | None]) -> dict[str, Any]:
    return {
        "same": found.same,
        "hidden": found.hidden,
        "more": max(0, len(found.rows) - MAX_ITEMS),
        "rows": [
            {
                "group": row.group,
                "name": row.name,
                "machine": row.group in MACHINE,
                "mode": mode(row.name),
                "texts": _texts(row),
                "numbers": [exact(value) if isinstance(value, float) else None for value in row.values],
            }
            for row in found.rows[:MAX_ITEMS]
        ],
    }


def _texts(row: Difference) -> list[str | None]:
    found = zip(row.values, row.texts, strict=True)
    texts = iter(cut_apart([text for value, text in found if value is not ABSENT]))
    return [None if value is ABSENT else next(texts) for value in row.values]


# -- both --------------------------------------------------------------------------------------------


def render(data: Page, live: Live | None = None, scripts: Sequence[str] = ()) -> str:
    """Return the HTML of a page's data."""
    data = {**data, "live": asdict(live) if live else None, "made_by": f"Hookline {__version__}"}
    return document(f"{data['title']} · Hookline", data, fallback(data), online=live is not None, scripts=scripts)


def write(text: str, path: Path, *, to_device: bool = False) -> Path:
    """Write a page atomically: a reader sees the old page or the new one.

    A symbolic link is kept.

    Args:
        text: Content of the page.
        path: Path of the file.
        to_device: Accept a pipe or a device such as ``/dev/stdout``, because the user named the path.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        if not to_device:
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        target.write_text(text, encoding="utf-8")
        return path
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def _chart(chart: Chart, runs: list[int]) -> dict[str, Any]:
    return {
        "section": chart.section,
        "machine": chart.section in MACHINE,
        "heading": section_title(chart.section),
        "title": chart.title,
        "lines": [
            {"run": run, "name": line.name, "label": line.label, "stage": line.stage, "unit": unit_of(line.name)}
            for line in chart.lines
            for run in runs
        ],
    }


def _curves(run: RunData, limit: int) -> dict[str, Any]:
    return {name: curve(series, limit) for name, series in run.series.items()}
