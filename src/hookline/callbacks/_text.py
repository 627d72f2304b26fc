"""Numbers, times, sizes and errors as short strings for people. ASCII, because not every terminal is UTF-8."""

from __future__ import annotations

import math
import re

from hookline.errors import error_text
from hookline.records import Value
from hookline.records.redact import redact_text

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MAX_ERROR_CHARS = 300


def format_metric(value: Value | None) -> str:
    """Return a metric with four digits. Of an array, return the number of values.

    Example:
        >>> [format_metric(v) for v in (0.31234, 1e-05, 12345.6, float("nan"), [0.1, 0.2, 0.3], None)]
        ['0.3123', '1e-05', '12346', 'nan', '[3 values]', '-']
    """
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{len(value)} values]"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def format_count(count: float, digits: int = 3) -> str:
    """Return a count with a unit prefix.

    Example:
        >>> [format_count(n) for n in (0, 999, 1234, 5_600_000, 8.2e9, 3e15)]
        ['0', '999', '1.23k', '5.6M', '8.2G', '3P']
    """
    for size, prefix in PREFIXES:
        if abs(count) >= size:
            return f"{count / size:.{digits}g}{prefix}"
    return f"{count:g}" if count == int(count) else f"{count:.0f}"


def format_time(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    Example:
        >>> [format_time(s) for s in (7.2, 727, 3723, 97_445)]
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


def format_speed(per_second: float | None, unit: str) -> str:
    """Return a speed per second, or seconds per iteration if slow. Empty if not known.

    Example:
        >>> format_speed(12.34, "it"), format_speed(0.25, "it"), format_speed(1210.4, "samples")
        ('12.3 it/s', '4.00 s/it', '1,210 samples/s')
    """
    if per_second is None or per_second <= 0 or not math.isfinite(per_second):
        return ""
    if per_second < 1 and unit == "it":
        return f"{1 / per_second:.2f} s/it"
    if per_second >= 1e6:
        return f"{format_count(per_second)} {unit}/s"
    return f"{per_second:.1f} {unit}/s" if per_second < 100 else f"{per_second:,.0f} {unit}/s"


def format_size(size: float, decimals: int = 1, *, sign: bool = False) -> str:
    """Return a number of bytes in MB (10⁶ bytes).

    Example:
        >>> format_size(1_234_567), format_size(1_234_567, 3, sign=True)
        ('1.2 MB', '+1.235 MB')
    """
    return f"{size / 1e6:{'+' if sign else ''},.{decimals}f} MB"


def format_error(error: BaseException, max_chars: int = MAX_ERROR_CHARS) -> str:
    """Return class and message of an error on one line, without secrets and terminal colors."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", error_text(error)[: 10 * max_chars]).split())
    text = redact_text(text)
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
