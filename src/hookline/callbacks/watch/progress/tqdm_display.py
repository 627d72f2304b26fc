"""``TqdmDisplay``: bars that look like those of tqdm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hookline.callbacks._text import format_metric
from hookline.callbacks.watch.progress.display import Bar, Progress
from hookline.callbacks.watch.progress.screen import Screen, safe
from hookline.callbacks.watch.progress.wording import fitting

if TYPE_CHECKING:
    from hookline.run import Run

SHORTEST = 10
"""Minimum width of a bar. If there is less space, the metrics go below the bar."""


class TqdmDisplay:
    """Show lines such as ``epoch:  28%|███   | 2/5 [00:12<00:31, train/loss=0.312]``.

    tqdm formats the lines and ``Screen`` shows them. There is no thread and no lock that the workers of a
    loader would inherit.
    """

    def __init__(self) -> None:
        self._screen = Screen()
        self._tqdm: Any = import_module("tqdm").tqdm

    def start(self, run: Run) -> None:
        self._screen.open()

    def update(self, progress: Progress) -> None:
        console = self._screen.console
        lines = self._lines(progress, console.width)
        self._screen.show(Text("\n".join(safe(line, console) for line in lines), no_wrap=True, overflow="crop"))

    def close(self) -> None:
        self._screen.close()

    def _lines(self, progress: Progress, width: int) -> list[str]:
        """Return the lines of the bars, the metrics and the note."""
        names = [bar.name for bar in progress.bars]
        longest = max(map(len, names), default=0)
        metrics = [f"{name}={format_metric(value)}" for name, value in progress.metrics.items()]
        beside = [progress.beside] if progress.beside else []
        words = [self._words(bar, progress, whole=index == 0) for index, bar in enumerate(progress.bars)]
        room = width - longest - len("x: 100%||  []") - SHORTEST
        fits = bool(words) and len(", ".join([words[0], *beside, *metrics])) <= room
        if fits:
            words[0] = ", ".join(part for part in (words[0], *beside, *metrics) if part)
        lines = [
            self._line(bar, f"{bar.name}: ".ljust(longest + 2), words[index], width)
            for index, bar in enumerate(progress.bars)
        ]
        lines += [] if fits else _wrapped(beside + metrics, width)
        return [*lines, *([progress.note] if progress.note else [])]

    def _words(self, bar: Bar, progress: Progress, *, whole: bool) -> str:
        """Return times and speed. The elapsed time is that of the whole run."""
        passed = self._tqdm.format_interval(progress.seconds) if whole else ""
        over = progress.over or progress.note
        left = "" if not bar.seconds_left or over else f"<{self._tqdm.format_interval(bar.seconds_left)}"
        return ", ".join(part for part in (passed + left, bar.speed) if part)

    def _line(self, bar: Bar, name: str, words: str, width: int) -> str:
        """Return the line of one bar."""
        shape = "{desc}{percentage:3.0f}%|{bar}| {words}" if bar.total else "{desc}{words}"
        words = fitting(words, width - len(name) - len(bar.count) - len("100%|x|  []"))
        text = f"{bar.count} [{words}]" if words else bar.count
        done, total = (0, None) if bar.share is None else (bar.share, 1)
        line: str = self._tqdm.format_meter(done, total, 0, ncols=width, prefix=name, bar_format=shape, words=text)
        return line


def _wrapped(parts: list[str], width: int) -> list[str]:
    """Wrap the parts to lines, so that no name is separated from its value."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines
