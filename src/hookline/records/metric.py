"""``MetricRow``: one value of one metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Value = float | list[Any]
"""A number, or a small array as nested lists."""

Kind = Literal["step", "epoch", "eval"]

SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One value of one metric, for an interval of steps, an epoch or an evaluation."""

    name: str
    step: int
    epoch: int
    value: Value
    kind: Kind
    seconds: float


def losses_not_finite(values: Mapping[str, Value]) -> list[str]:
    """Describe each loss that is NaN or infinite. Other metrics may be NaN on purpose.

    >>> losses_not_finite({"train/loss": math.nan, "val/loss": 0.5, "val/auc": math.nan})
    ['train/loss is nan']
    """
    return [
        f"{name} is {value}"
        for name, value in values.items()
        if name.endswith("loss") and isinstance(value, float) and not math.isfinite(value)
    ]


def encode(value: Any) -> Any:
    """Replace NaN and infinities by strings, because JSON has no such numbers."""
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(value: Any) -> Any:
    """Convert the strings of ``encode`` back to numbers.

    Raises:
        KeyError: If a string is not a special number.
        TypeError: If a value is not a number.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, str):
        return SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value
