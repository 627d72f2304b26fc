"""The pages: the report of a run, and several runs compared."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hookline import __version__
from hookline.records.direction import known_direction
from hookline.records.regular_file import open_regular
from hookline.report.about import costs_of, events_of, facts_of, put_back_of, sessions_of, settings_of, status_of
from hookline.report.charts import MACHINE, Chart, by_name, curve, plan, section_title, share
from hookline.report.clock import clock_of, of_the_loop
from hookline.report.compare import ABSENT, Difference, Differences, differing_metrics, differing_settings
from hookline.report.document import document, embedded
from hookline.report.fallback import fallback
from hookline.report.fit import MOST, cut, cut_apart
from hookline.report.media import OTHERS, media_of, summary_of
from hookline.report.numbers import exact, numbers_of, tiles_of
from hookline.report.read import RunData, read_run
from hookline.report.units import unit_of

FILE = "report.html"
LARGEST = 4_500_000
"""So many characters of data a page has at most, if that can be; pictures take what is left."""
NUMBERS = 2_000
"""The table of all metrics has so many rows at most."""
HEAD = 4000
"""Number of bytes at the start of a page that contain its title."""
Page = dict[str, Any]
"""All that a page shows, as plain values."""


@dataclass(frozen=True, slots=True)
class Live:
    """A page that keeps itself up to date: it asks ``url`` every so many seconds for its data anew.

    The page adds ``since=<version>`` to the address. The answer is the page's data with a new ``version`` in it; or
    ``{"version": …}`` alone, if nothing is new.
    """

    url: str
    version: str = ""
    every: float = 2.0
    home: str | None = None
    """Where the list of all runs is."""


# -- one run ---------------------------------------------------------------------------------------


def render_report(run: RunData, live: Live | None = None) -> str:
    """The report of a run as one HTML file."""
    return render(page_data(run), live)


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a run, in one piece; where it is."""
    return write(render_report(read_run(folder)), folder / FILE)


def page_data(run: RunData) -> Page:
    """What the report shows."""
    numbers, limit, facts = numbers_of(run.series), share(len(run.series)), facts_of(run)
    back = put_back_of(run)
    data = {
        "page": "report",
        "title": run.title,
        "status": {**status_of(run), "put_back": back.text if back else ""},
        "facts": facts,
        "notes": [*_trouble(run), *_thinned([run], limit)],
        "tiles": tiles_of(run.series, numbers, back.step, back.seconds) if back else tiles_of(run.series, numbers),
        "numbers": numbers[:NUMBERS],
        "metrics": len(numbers),
        "runs": [{"title": run.title, "facts": facts}],
        "charts": [_chart(chart, [0]) for chart in plan(run.series)],
        "clocks": [clock_of(of_the_loop(run.series))],
        "curves": [_curves(run, limit)],
        "events": events_of(run),
        "sessions": sessions_of(run),
        "costs": costs_of(run),
        "summary": summary_of(run),
        "settings": settings_of(run),
        "files": [
            {"name": cut(name), "file": cut(rows.newest.file), "size": rows.newest.size, "step": rows.newest.step}
            for name, rows in sorted(run.files.items())[:MOST]
        ],
        "more_files": max(0, len(run.files) - MOST),
    }
    return data | media_of(run, LARGEST - 4 * OTHERS - len(embedded(data)))


def _trouble(run: RunData) -> list[str]:
    """What could not be read."""
    notes = [f"{run.trouble}; settings, costs and environment are not known."] if run.trouble else []
    if run.damaged:
        lines = "1 line" if run.damaged == 1 else f"{run.damaged:,} lines"
        notes.append(f"{lines} of metrics.jsonl or events.jsonl could not be read.")
    return notes


def _thinned(runs: Sequence[RunData], limit: int) -> list[str]:
    """That not every value is drawn, if it is so."""
    if all(len(series) <= limit for run in runs for series in run.series.values()):
        return []
    return [
        f"Curves show at most {limit:,} points: of each group of values the first, the lowest, the highest and the "
        f"last, so no extreme is lost. All {sum(run.rows for run in runs):,} rows are in metrics.jsonl."
    ]


# -- several runs ------------------------------------------------------------------------------------


def render_compare(runs: Sequence[RunData], live: Live | None = None) -> str:
    """Several runs over one another, and what differs between them, as one HTML file."""
    return render(compare_data(runs), live)


def compare_data(runs: Sequence[RunData]) -> Page:
    """What the comparison shows."""
    names = sorted({name for run in runs for name in run.series})
    having = {name: [place for place, run in enumerate(runs) if name in run.series] for name in names}
    limit = share(sum(len(run.series) for run in runs))
    named = list(zip(titles(runs), runs, strict=True))
    return {
        "page": "compare",
        "title": f"{len(runs)} runs",
        "project": common_project(runs),
        "notes": [*(f"{title}: {note}" for title, run in named for note in _trouble(run)), *_thinned(runs, limit)],
        "runs": [_compared(title, run) for title, run in named],
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
    """Whether a file begins as what ``render_compare`` makes does; not one that cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD).decode("utf-8", "replace")
            return re.search(r"<title>\d+ runs · Hookline</title>", head) is not None
    except OSError:
        return False


def common_project(runs: Sequence[RunData]) -> str:
    """The project of all runs, if it is one."""
    found = {run.file.project if run.file else "" for run in runs}
    return found.pop() if len(found) == 1 else ""


def titles(runs: Sequence[RunData]) -> list[str]:
    """Titles that tell the runs apart; without a project that is that of all of them."""
    short = common_project(runs)
    found = [run.file.name if short and run.file else run.title for run in runs]
    return told_apart(found, [run.folder for run in runs])


def told_apart(titles: Sequence[str], folders: Sequence[Path], above: Path | None = None) -> list[str]:
    """Titles of which several are the same get the path of the run, from ``above`` or the folder of all of them."""
    paths = [os.path.abspath(folder) for folder in folders]
    start = os.path.commonpath(paths) if above is None and paths else os.path.abspath(above or ".")
    return [
        title if titles.count(title) == 1 else f"{title} ({os.path.relpath(path, start)})"
        for title, path in zip(titles, paths, strict=True)
    ]


def _differences(found: Differences, mode: Callable[[str], str | None]) -> dict[str, Any]:
    return {
        "same": found.same,
        "hidden": found.hidden,
        "more": max(0, len(found.rows) - MOST),
        "rows": [
            {
                "group": row.group,
                "name": row.name,
                "machine": row.group in MACHINE,
                "mode": mode(row.name),
                "texts": _texts(row),
                "numbers": [exact(value) if isinstance(value, float) else None for value in row.values],
            }
            for row in found.rows[:MOST]
        ],
    }


def _texts(row: Difference) -> list[str | None]:
    found = zip(row.values, row.texts, strict=True)
    texts = iter(cut_apart([text for value, text in found if value is not ABSENT]))
    return [None if value is ABSENT else next(texts) for value in row.values]


# -- both --------------------------------------------------------------------------------------------


def render(data: Page, live: Live | None = None) -> str:
    """The HTML of a page's data."""
    data = {**data, "live": asdict(live) if live else None, "made_by": f"Hookline {__version__}"}
    return document(f"{data['title']} · Hookline", data, fallback(data), online=live is not None)


def write(text: str, path: Path, *, to_device: bool = False) -> Path:
    """Write a page in one piece: a reader sees the old page or the new one. A link stays a link.

    ``to_device``: the user has named the path, so it may be a pipe or a device such as ``/dev/stdout``.
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
