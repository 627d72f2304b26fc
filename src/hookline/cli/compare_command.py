"""``hookline compare``: show the differences between runs, in the terminal and as a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookline.cli.console import WIDEST, plain_text, wide_console
from hookline.cli.report_command import save
from hookline.errors import HooklineError, SetupError

if TYPE_CHECKING:
    from hookline.report import RunData
    from hookline.report.compare import Difference

PAGE = "compare.html"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="show the differences between runs: settings, final metrics, curves",
        description="Print the settings and final metrics that differ, and write a page with the curves of all runs. "
        f"The page is {PAGE} in the current folder, or the file of --output. Its path is the last line of the output. "
        f"{PAGE} is overwritten only if it is an earlier comparison.",
    )
    parser.add_argument("folders", metavar="RUN", type=Path, nargs="+", help="folders of two or more runs")
    parser.add_argument("--output", metavar="FILE", type=Path, help=f"path of the page (default: {PAGE})")
    parser.add_argument("--table", action="store_true", help="only print, do not write a page")
    parser.add_argument("--sort", metavar="NAME", help="sort the runs by a metric, a setting, progress, left or step")
    parser.add_argument("--all", action="store_true", help="also print metrics of the machine: speed, time, memory")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from hookline.cli.leaderboard_table import print_board
    from hookline.report.leaderboard import standing_of
    from hookline.report.page import titles

    try:
        runs = _read(arguments.folders)
        if arguments.table and arguments.output is not None:
            raise SetupError("--table writes no page and cannot be combined with --output. Omit one of them.")
        page = arguments.output or Path(PAGE)
        if not arguments.table and arguments.output is None:
            _refuse_another_file(page)
        print_board(titles(runs), [standing_of(found) for found in runs], arguments.sort)
        _print(runs, machine=arguments.all)
        if not arguments.table:
            from hookline.report import render_compare

            before = "the existing file is overwritten:\n" if page.exists() else ""
            print(f"{before}{save(render_compare(runs), page, to_device=True).absolute()}")
    except HooklineError as error:
        print(f"hookline compare: {error}", file=sys.stderr)
        return 2
    return 0


def _refuse_another_file(path: Path) -> None:
    """Refuse to overwrite a file at the default path that is not a comparison."""
    from hookline.report.page import is_comparison

    if path.exists() and not is_comparison(path):
        raise SetupError(
            f"{path.absolute()} already exists and is not a comparison of runs. Give the file to write with --output; "
            f"an existing file is then overwritten."
        )


def _read(folders: Sequence[Path]) -> list[RunData]:
    from hookline.report import read_run
    from hookline.report.read import is_run

    if len(folders) < 2:
        hint = f", such as {folders[0]}/*" if folders[0].is_dir() and not is_run(folders[0]) else ""
        raise SetupError(f"{folders[0]}: one run alone cannot be compared. Give two or more{hint}.")
    seen: dict[Path, Path] = {}
    for folder in folders:
        if (same := seen.setdefault(folder.resolve(), folder)) is not folder:
            raise SetupError(f"{folder} and {same} are the same run. Give each run once.")
    runs = [read_run(folder) for folder in folders]
    for found in runs:
        # A run that failed before its first row has settings, so ``runs/*`` may include it.
        if not found.series and not found.arrays and found.file is None:
            raise SetupError(f"{found.folder} has no metrics to compare.")
    return runs


def _print(runs: Sequence[RunData], *, machine: bool) -> None:
    from hookline.report import differing_metrics, differing_settings
    from hookline.report.about import put_back_of
    from hookline.report.charts import MACHINE
    from hookline.report.page import titles

    console = wide_console()
    for what, found in (("setting", differing_settings(runs)), ("final metric", differing_metrics(runs))):
        rows = [row for row in found.rows if machine or row.group not in MACHINE]
        if rows or not found.rows:
            console.print(_fitting(console, what, rows, titles(runs)))
        if left := len(found.rows) - len(rows):
            these = f"{what} of the machine differs" if left == 1 else f"{what}s of the machine differ"
            console.print(Text(f"{left:,} {these}: --all prints them", style="dim"))
        console.print(Text(_counted(what, found.same, "the same"), style="dim"))
        if found.hidden:
            console.print(Text(_counted(what, found.hidden, "hidden in all runs, and may differ"), style="dim"))
        console.print()
    for title, found_run in zip(titles(runs), runs, strict=True):
        if back := put_back_of(found_run):
            console.print(Text(plain_text(f"{title}: {back.text}. The table shows its last values."), style="dim"))


def _counted(what: str, count: int, how: str) -> str:
    return f"{count:,} {what} is {how}" if count == 1 else f"{count:,} {what}s are {how}"


def _fitting(console: Console, what: str, rows: Sequence[Difference], titles: Sequence[str]) -> Table | Text:
    """Return a table with one column per run, or with one line per value if that is too wide."""
    table = _table(what, rows, titles)
    unbounded = console.options.update(max_width=WIDEST)
    return table if console.measure(table, options=unbounded).maximum <= console.width else _stacked(what, rows, titles)


def _stacked(what: str, rows: Sequence[Difference], titles: Sequence[str]) -> Table:
    table = _empty(what)
    table.add_column("value", overflow="fold", justify="right" if what == "final metric" else "left")
    table.add_column("runs", overflow="fold")
    for row in rows:
        runs: dict[str, list[str]] = {}
        for text, title in zip(row.texts, titles, strict=True):
            runs.setdefault(text, []).append(title)
        names = [_name(what, row), *[""] * (len(runs) - 1)]
        for name, (text, its) in zip(names, runs.items(), strict=True):
            table.add_row(Text(plain_text(name)), Text(plain_text(text)), Text(plain_text(", ".join(its))))
    return table


def _table(what: str, rows: Sequence[Difference], titles: Sequence[str]) -> Table | Text:
    """Return the table.

    Names and values are untrusted: they are not printed as markup or control codes.
    """
    if not rows:
        return Text(f"No {what} differs.", style="bold")
    table = _empty(what)
    for title in titles:
        table.add_column(
            Text(plain_text(title)), overflow="fold", justify="right" if what == "final metric" else "left"
        )
    for row in rows:
        table.add_row(Text(plain_text(_name(what, row))), *(Text(plain_text(text)) for text in row.texts))
    return table


def _empty(what: str) -> Table:
    title = f"{what.capitalize()}s that differ"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column(what, overflow="fold")
    return table


def _name(what: str, row: Difference) -> str:
    return row.name if what == "final metric" else f"{row.group}: {row.name}"
