"""Numbers, times and speeds as short ASCII strings, because not every terminal is UTF-8."""

from __future__ import annotations

import math

from hookline.callbacks.watch.progress.display import Bar
from hookline.records import Value


def number(value: Value | None) -> str:
    """Return a metric with four digits. Of an array, return the number of values.

    Example:
        >>> [number(v) for v in (0.31234, 1e-05, 12345.6, float("nan"), [0.1, 0.2, 0.3], None)]
        ['0.3123', '1e-05', '12346', 'nan', '[3 values]', '-']
    """
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{len(value)} values]"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def span(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    Example:
        >>> [span(s) for s in (7.2, 727, 3723, 97_445)]
        ['0:07', '12:07', '1:02:03', '1d 3:04:05']
    """
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if not hours:
        return f"{minute}:{second:02}"
    return f"{f'{days}d ' if days else ''}{hour}:{minute:02}:{second:02}"


def speed(per_second: float | None, unit: str) -> str:
    """Return a speed per second, or seconds per iteration if slow. Empty if not known.

    Example:
        >>> speed(12.34, "it"), speed(0.25, "it"), speed(1210.4, "samples"), speed(2_345_678, "tokens")
        ('12.3 it/s', '4.00 s/it', '1,210 samples/s', '2.35M tokens/s')
    """
    if per_second is None or per_second <= 0 or not math.isfinite(per_second):
        return ""
    if per_second < 1 and unit == "it":
        return f"{1 / per_second:.2f} s/it"
    if per_second >= 1e6:
        return f"{large(per_second)} {unit}/s"
    return f"{per_second:.1f} {unit}/s" if per_second < 100 else f"{per_second:,.0f} {unit}/s"


def large(count: float) -> str:
    """Return a count with three digits and a unit prefix.

    Example:
        >>> [large(n) for n in (999, 1_234_567, 10_000_000, 2.5e9)]
        ['999', '1.23M', '10M', '2.5G']
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


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
    parts = [] if seconds is None else [span(seconds)]
    parts += [f"{span(bar.seconds_left)} left"] if bar.seconds_left and not over else []
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
