"""``RichDisplay``: bars in a terminal that move in place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.progress_bar import ProgressBar as BarLine
from rich.table import Table
from rich.text import Text

from hookline.callbacks.watch.display import Progress
from hookline.callbacks.watch.redirect import above, is_terminal
from hookline.callbacks.watch.region import NOBODY_THERE, Region
from hookline.callbacks.watch.wording import beside_bar, number

if TYPE_CHECKING:
    from hookline.run import Run

WIDEST, SHORTEST = 40, 8
WORDS = 45
"""The width that the words beside a bar need."""


class RichDisplay:
    """One row a bar, then the metrics. What the program prints meanwhile appears above them.

    It redraws only when it is told to, and starts no thread. Where the cursor cannot move (a file, a dumb
    terminal) it shows the last frame only, at the end.
    """

    def __init__(self) -> None:
        self._console = console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._region = Region(sys.stdout, lambda: console.size)
        self._moves = is_terminal(sys.stdout) and not console.is_dumb_terminal
        self._redirected = ExitStack()
        self._last: Progress | None = None

    def start(self, run: Run) -> None:
        if self._moves:
            self._redirected.enter_context(above(self._region.print_above))

    def update(self, progress: Progress) -> None:
        self._last = progress
        if self._moves:
            self._draw(progress)

    def close(self) -> None:
        try:
            if self._last is not None and not self._moves:
                self._draw(self._last)
            self._region.end()
        finally:
            self._redirected.close()

    def _draw(self, progress: Progress) -> None:
        frame = draw(progress, self._console)
        with suppress(*NOBODY_THERE):  # a capture flushes the terminal
            with self._console.capture() as captured:
                self._console.print(frame)
            self._region.draw(captured.get().rstrip("\n"))


def draw(progress: Progress, console: Console) -> Group:
    """The bars as a table, the metrics below it. Where it is narrow the words go first, then the bars."""
    names = [_safe(bar.name, console) for bar in progress.bars]
    counts = [_safe(bar.count, console) for bar in progress.bars]
    count_width = max(map(_final_width, counts), default=0)
    room = console.width - 4 - max(map(len, names), default=0) - count_width
    width = max(0, min(WIDEST, room, max(SHORTEST, room - WORDS)))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True, overflow="crop")
    for index, bar in enumerate(progress.bars):
        line = BarLine(total=bar.total, completed=bar.done, width=width) if width > 2 else ""
        words = beside_bar(bar, progress.seconds if index == 0 else None, bool(progress.note))
        table.add_row(
            names[index], counts[index].rjust(count_width), line, Text(words[: max(0, room - width - 2)], style="dim")
        )
    return Group(table, *_lines(_parts(progress, console), console.width))


def _final_width(count: str) -> int:
    """``9/115`` will be ``115/115``: what stands beside it does not move then."""
    _, slash, total = count.partition("/")
    return max(len(count), 2 * len(total) + 1 if slash else 0)


def _parts(progress: Progress, console: Console) -> Iterator[Text]:
    if progress.beside:
        yield Text(progress.beside)
    for name, value in progress.metrics.items():
        yield Text.assemble((_safe(name, console), "dim"), " ", _safe(number(value), console))
    if progress.note:
        yield Text(_safe(progress.note, console), style="yellow")


def _lines(parts: Iterable[Text], width: int) -> list[Text]:
    """As many parts on a line as fit, so that no name is parted from its value."""
    lines: list[Text] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(part)
    return lines


def _safe(text: str, console: Console) -> str:
    """What this terminal can show: a metric may be called anything, and not every terminal is UTF-8."""
    return text.encode(console.encoding, "replace").decode(console.encoding)
