"""Words next to a bar, and what fits into a line."""

from __future__ import annotations

from hookline.callbacks._text import format_time
from hookline.callbacks.watch.progress.display import Bar


def beside_bar(bar: Bar, seconds: float | None, over: bool) -> str:
    """Return the elapsed time, the remaining time and the speed as a string.

    Args:
        bar: The bar.
        seconds: Elapsed seconds. ``None``: leave out.
        over: Leave out the remaining time, because the run has ended.

    Example:
        >>> beside_bar(Bar("step", "46/115", 46, 115, "12.3 it/s", seconds_left=31.2), 12.5, over=False)
        '0:12, 0:31 left, 12.3 it/s'
    """
    parts = [] if seconds is None else [format_time(seconds)]
    parts += [f"{format_time(bar.seconds_left)} left"] if bar.seconds_left and not over else []
    return ", ".join([*parts, *([bar.speed] if bar.speed else [])])


def fitting(words: str, room: int) -> str:
    """Return as many comma-separated parts as fit. A truncated number would be wrong.

    Example:
        >>> fitting("0:12, 0:31 left, 1,210 it/s", 20)
        '0:12, 0:31 left'
    """
    while words and len(words) > room:
        words = words.rpartition(", ")[0]
    return words
