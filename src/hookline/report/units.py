"""Format numbers with their units, as the charts do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

Unit = Literal["size", "time"]

_KNOWN: dict[Unit, re.Pattern[str]] = {
    "size": re.compile(
        r"memory/((val|test|predict)/)?(process|process_peak|children|[a-z]+\d+/(allocated|reserved)(_peak)?)(_epoch)?"
    ),
    "time": re.compile(r"time/(elapsed|remaining)(_epoch)?"),
}
"""Metrics of Hookline's callbacks. The unit of another metric of these sections is unknown."""
_SIZES = ("B", "kB", "MB", "GB", "TB")
DIGITS = 3
MAX_DIGITS = 9


def unit_of(name: str) -> Unit | None:
    """Return the unit of a metric if it is known: ``size`` in megabytes, ``time`` in seconds.

    >>> unit_of("memory/cuda0/allocated"), unit_of("time/remaining"), unit_of("memory/cuda0/ooms")
    ('size', 'time', None)
    """
    return next((unit for unit, names in _KNOWN.items() if names.fullmatch(name)), None)


def size(megabytes: float, digits: int = DIGITS) -> str:
    """Format a size.

    >>> size(531.247), size(17238.6), size(0.0005)
    ('531 MB', '17.2 GB', '500 B')
    """
    value, place = 1e6 * megabytes, 0
    while abs(value) >= 1000 and place < len(_SIZES) - 1:
        value, place = value / 1000, place + 1
    return f"{_short(value, digits)} {_SIZES[place]}"


def duration(seconds: float, digits: int = DIGITS) -> str:
    """Format a time.

    >>> duration(0.01234), duration(59.5), duration(3700), duration(3701, digits=4)
    ('12.3 ms', '59.5 s', '1 h 1 m', '1 h 1 m 41 s')
    """
    if seconds < 0:
        return f"-{duration(-seconds, digits)}"
    if seconds < 1:
        return f"{_short(seconds * 1000, digits)} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{_short(seconds, digits)} s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + digits - 1] if count)


def _short(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):,.{max(6, digits)}g}"


_WORDS: dict[Unit, tuple[Callable[[float, int], str], str]] = {"size": (size, "MB"), "time": (duration, "s")}


def with_unit(name: str, value: float, digits: int = DIGITS) -> str | None:
    """Format a value of a metric with a unit, or return ``None`` without a unit.

    With more than ``MAX_DIGITS`` digits, all digits are shown.
    """
    unit = unit_of(name)
    if unit is None or not math.isfinite(value):
        return None
    words, base = _WORDS[unit]
    return words(value, digits) if digits <= MAX_DIGITS else f"{value!r} {base}"
