"""Numbers with their units, in the words of the charts."""

from __future__ import annotations

import math
from collections.abc import Callable

_SIZES = ("B", "kB", "MB", "GB", "TB")


def size(megabytes: float) -> str:
    """Bytes, for people.

    >>> size(531.247), size(17238.6), size(0.0005)
    ('531 MB', '17.2 GB', '500 B')
    """
    value, place = 1e6 * megabytes, 0
    while abs(value) >= 1000 and place < len(_SIZES) - 1:
        value, place = value / 1000, place + 1
    return f"{_three(value)} {_SIZES[place]}"


def duration(seconds: float) -> str:
    """Seconds, for people.

    >>> duration(0.01234), duration(59.5), duration(3700)
    ('12.3 ms', '59.5 s', '1 h 1 m')
    """
    if seconds < 1:
        return f"{_three(seconds * 1000)} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{_three(seconds)} s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def _three(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}"


UNITS: dict[str, Callable[[float], str]] = {"memory": size, "time": duration}
"""By the first part of a metric's name; ``memory/`` is in megabytes."""


def with_unit(group: str, value: float) -> str | None:
    """A value of such a metric; ``None`` where it has no unit."""
    unit = UNITS.get(group)
    return unit(value) if unit is not None and math.isfinite(value) else None
