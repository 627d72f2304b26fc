"""``PlainDisplay``: lines of text for logs and other output that is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hookline.callbacks._text import format_metric, format_time
from hookline.callbacks.watch.progress.display import Progress
from hookline.callbacks.watch.progress.redirect import beneath_tees

if TYPE_CHECKING:
    from hookline.run import Run


class PlainDisplay:
    """Print lines such as ``21:03:07 epoch 2/5 step 46/115 train/loss 0.312 12.3 it/s``.

    A line does not repeat what the previous line has shown for the same step. The first line of a run is that
    of its first step.

    Args:
        write: Function that gets each line, without the time of day. ``None``: print to standard output and
            flush. If standard output is closed or full, the display stops printing.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = self._print if write is None else write
        self._where: str | None = None
        self._said: dict[str, str] = {}
        """Last printed values by metric name. The note has an empty name."""
        self._closed = False

    def start(self, run: Run) -> None:
        self._where, self._said, self._closed = None, {}, False

    def update(self, progress: Progress) -> None:
        news = self._news(progress)
        if news and not self._closed:
            self._write(" ".join(part for part in (*news, how_fast(progress)) if part))

    def _news(self, progress: Progress) -> list[str]:
        """Return the new parts of the line. Times are left out because they always differ."""
        parts = {name: f"{name} {format_metric(value)}" for name, value in progress.metrics.items()}
        parts |= {"": progress.note} if progress.note else {}
        is_first, has_moved = self._where is None, progress.where != self._where
        fresh = [text for name, text in parts.items() if has_moved or self._said.get(name) != text]
        self._where, self._said = progress.where, parts
        has_values = any(value is not None for value in progress.metrics.values())
        if is_first and not has_values and not progress.note and not progress.over:
            return []
        return [progress.where, *fresh] if has_moved or fresh else []

    def close(self) -> None:
        self._closed = True

    def _print(self, line: str) -> None:
        """Print a line with the time of day."""
        try:
            # A test, a notebook or the user may have replaced the stream, so it is looked up each time.
            stream = beneath_tees(sys.stdout)
            encoding = stream.encoding or "utf-8"
            stream.write(f"{time.strftime('%H:%M:%S')} {line}\n".encode(encoding, "replace").decode(encoding))
            stream.flush()
        except (OSError, ValueError, AttributeError):  # A full disk or broken pipe; closed; None.
            self._closed = True


def in_words(progress: Progress) -> str:
    """Return the complete line without its times."""
    metrics = [f"{name} {format_metric(value)}" for name, value in progress.metrics.items()]
    return " ".join(part for part in (progress.where, *metrics, progress.note) if part)


def how_fast(progress: Progress) -> str:
    """Return the speed and the remaining time."""
    if progress.note or not progress.bars:
        return ""
    speeds = [bar.speed for bar in progress.bars if bar.speed]
    lefts = [bar.seconds_left for bar in progress.bars if bar.seconds_left]
    return ", ".join([*speeds[-1:], *(f"{format_time(left)} left" for left in lefts[:1])])
