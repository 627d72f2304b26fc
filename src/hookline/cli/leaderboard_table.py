"""The leaderboard as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hookline.cli.console import plain_text, wide_console
from hookline.errors import SetupError
from hookline.records.control import shown
from hookline.report.leaderboard import Standing, differing, in_order, metrics_by_rank
from hookline.report.units import duration

METRICS = 4
SETTINGS = 4
FIELDS = ("progress", "left", "step", "seconds")


def print_board(names: Sequence[str], standings: Sequence[Standing], by: str | None = None) -> None:
    """Print one line per run.

    Args:
        names: The name of each run.
        standings: The runs.
        by: What to sort by. By default, the first metric.

    Raises:
        SetupError: If no run has a metric or a setting of this name.
    """
    metrics = metrics_by_rank([standing.values for standing in standings])
    settings = differing([standing.settings for standing in standings])
    known = {name for standing in standings for name in standing.settings}
    if by is not None and by not in (*FIELDS, *metrics, *known):
        raise SetupError(f"--sort {by}: no run has it. Metrics: {', '.join(metrics[:20]) or 'none'}.")
    columns = metrics[:METRICS] + ([by] if by in metrics[METRICS:] else [])
    differ = settings[:SETTINGS] + ([by] if by in known and by not in settings[:SETTINGS] else [])
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", "state"):
        table.add_column(name, overflow="fold")
    for name in ("step", "done", "left", *columns):
        table.add_column(Text(plain_text(name)), justify="right")
    for name in differ:
        table.add_column(Text(plain_text(name)), overflow="fold")
    by = by or (metrics[0] if metrics else "step")
    for place in in_order(standings, by):
        table.add_row(*(Text(plain_text(cell)) for cell in _cells(names[place], standings[place], columns, differ)))
    console = wide_console()
    console.print(table)
    if len(settings) > len(differ):
        console.print(Text(f"{len(settings) - len(differ)} more settings differ: hookline compare prints them", "dim"))


def _cells(name: str, standing: Standing, metrics: Sequence[str], settings: Sequence[str]) -> list[str]:
    done = "" if standing.progress is None else f"{100 * standing.progress:.0f} %"
    left = "" if standing.left is None else duration(standing.left)
    values = [f"{standing.values[name]:.5g}" if name in standing.values else "" for name in metrics]
    differ = [shown(standing.settings[name]) if name in standing.settings else "—" for name in settings]
    return [name, standing.label, f"{standing.step:,}", done, left, *values, *differ]
