"""``RichDisplay``: bars in a terminal, redrawn in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.progress_bar import ProgressBar as BarLine
from rich.table import Table
from rich.text import Text

from hookline.callbacks._text import format_metric
from hookline.callbacks.watch.progress.display import Progress
from hookline.callbacks.watch.progress.screen import Screen, safe
from hookline.callbacks.watch.progress.wording import beside_bar, fitting

if TYPE_CHECKING:
    from hookline.run import Run

WIDEST, SHORTEST = 40, 8
WORDS = 45
"""Columns that the text next to a bar needs."""
GAP = 2
"""Spaces between two columns."""


class RichDisplay:
    """One row per bar, then the metrics. Output of the program appears above."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._widths = (0, 0)

    def start(self, run: Run) -> None:
        self._screen.open()

    def update(self, progress: Progress) -> None:
        console = self._screen.console
        self._widths = columns(progress, console, self._widths)
        self._screen.show(draw(progress, console, self._widths))

    def close(self) -> None:
        self._screen.close()


def columns(progress: Progress, console: Console, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return the widths of names and counts.

    They only grow, so that bars do not move at each evaluation.
    """
    names = [cell_len(safe(bar.name, console)) for bar in progress.bars]
    return max(before[0], *names, 0), max(before[1], *(_final_width(bar.count) for bar in progress.bars), 0)


def draw(progress: Progress, console: Console, widths: tuple[int, int]) -> Group:
    """Return the bars as a table with the metrics below.

    A narrow terminal omits first the text, then the bars.
    """
    count_width = widths[1]
    # Names are cut and counts are not: a truncated count would be a wrong number.
    name_width = max(1, min(widths[0], console.width - count_width - 3 * GAP))
    room = console.width - name_width - count_width - 2 * GAP
    width = max(0, min(WIDEST, room - GAP, max(SHORTEST, room - WORDS)))
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, overflow="crop", min_width=name_width, max_width=name_width)
    for _ in range(3):
        table.add_column(no_wrap=True, overflow="crop")
    for index, bar in enumerate(progress.bars):
        # A bar without a total would pulse forever.
        total = bar.done or 1 if progress.over and bar.total is None else bar.total
        style = "yellow" if progress.note else "bar.finished"  # A finished bar is green.
        line = BarLine(total=total, completed=bar.done, width=width, finished_style=style) if width > 2 else ""
        words = beside_bar(bar, progress.seconds if index == 0 else None, progress.over or bool(progress.note))
        table.add_row(
            safe(bar.name, console),
            safe(bar.count, console).rjust(count_width),
            line,
            Text(fitting(words, room - width - GAP), style="dim"),
        )
    return Group(table, *_lines(_parts(progress, console), console.width))


def _final_width(count: str) -> int:
    """Return the width that a count will have at the end: ``9/115`` becomes ``115/115``."""
    _, slash, total = count.partition("/")
    return max(len(count), 2 * len(total) + 1 if slash else 0)


def _parts(progress: Progress, console: Console) -> Iterator[Text]:
    """Yield the metrics and the note."""
    if progress.beside:
        yield Text(progress.beside)
    for name, value in progress.metrics.items():
        yield Text.assemble((safe(name, console), "dim"), " ", safe(format_metric(value), console))
    if progress.note:
        yield Text(safe(progress.note, console), style="yellow")


def _lines(parts: Iterable[Text], width: int) -> list[Text]:
    """Wrap the parts to lines, so that no name is separated from its value."""
    lines: list[Text] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(part)
    return lines
