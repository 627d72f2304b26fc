"""The typed rows that the loop writes and that sinks and reports read, with their JSON form."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

Value = float | list[Any]
"""A number, or a small array as nested lists."""

Kind = Literal["step", "epoch", "eval"]

_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps would make one for each row
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One value of one metric.

    >>> MetricRow.from_json(MetricRow("val/loss", 10, 1, math.nan, "eval", 2.5).to_json()).value
    nan
    """

    name: str
    step: int
    epoch: int
    value: Value
    kind: Kind
    seconds: float

    def to_json(self) -> str:
        """One line. NaN and infinities are texts in it, because JSON has no such numbers."""
        row = {
            "name": self.name,
            "step": self.step,
            "epoch": self.epoch,
            "value": _encode(self.value),
            "kind": self.kind,
            "seconds": round(self.seconds, 6),
        }
        return _ENCODER.encode(row)

    @classmethod
    def from_json(cls, line: str) -> MetricRow:
        row = json.loads(line)
        return cls(**{**row, "value": _decode(row["value"])})


def _encode(value: Any) -> Any:
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return SPECIAL[value] if isinstance(value, str) else value
