"""Shapes of a learning rate schedule, as factors of the optimizer's learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from hookline.errors import RegistrationError

OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("start",),
    "linear": ("start", "end"),
    "cosine": ("start", "end"),
    "cosine_restarts": ("start", "end", "cycles"),
    "wsd": ("start", "end", "decay", "decay_shape"),
}
"""Options of each shape, in addition to ``warmup`` and ``total``."""


class Shape:
    """Factor of the learning rate by scheduler step.

    The first ``warmup`` of ``total`` steps rise from ``start`` to 1. Neither the first nor the last step has a
    learning rate of 0: ``end`` applies after the last step. All attributes are plain values, because the scheduler
    saves them.

    Example:
        >>> cosine = Shape("cosine", total=6, warmup=2)
        >>> [round(cosine(move), 2) for move in range(8)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
    """

    def __init__(
        self,
        kind: str,
        *,
        total: int | None = None,
        warmup: int = 0,
        start: float = 0.0,
        end: float = 0.0,
        cycles: int = 2,
        decay: int = 0,
        decay_shape: str = "sqrt",
    ) -> None:
        self.kind = kind
        self.total = total
        self.warmup = warmup
        self.start = start
        self.end = end
        self.cycles = cycles
        self.decay = decay
        self.decay_shape = decay_shape

    def __call__(self, move: int) -> float:
        if move < self.warmup:
            return self.start + (1.0 - self.start) * (move + 1) / self.warmup
        if self.total is None:
            return 1.0
        if move >= self.total:
            return 1.0 if self.kind == "constant" else self.end
        begins = self.total - self.decay if self.kind == "wsd" else self.warmup
        length, moved = self.total - begins, max(0, move - begins)
        if self.kind == "cosine_restarts":
            # Integers are needed: a rounding error could turn a restart into the end of a cosine.
            moved = moved * self.cycles % length
        curve = CURVES[self.decay_shape if self.kind == "wsd" else self.kind]
        return self.end + (1.0 - self.end) * curve(moved / length if length else 0.0)


def _half_cosine(done: float) -> float:
    """Return half a cosine wave, from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


CURVES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": _half_cosine,
    "cosine_restarts": _half_cosine,
    "sqrt": lambda done: 1.0 - math.sqrt(done),
}
"""Curves from 1 to 0, as functions of the fraction that is done."""
DECAYS = ("sqrt", "linear", "cosine")


def check_options(kind: str, options: dict[str, object]) -> None:
    """Raise for an option that the shape does not take, or for a value out of range."""
    unknown = [name for name in options if name not in OPTIONS[kind]]
    if unknown:
        raise RegistrationError(
            f"LRSchedule({kind!r}, {unknown[0]}=…): it has no such option; it takes warmup, total, "
            f"{', '.join(OPTIONS[kind])}"
        )
    for name in ("start", "end"):
        value = options.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise RegistrationError(f"LRSchedule({name}={value!r}): a factor of the learning rate, from 0 to 1")
    cycles = options.get("cycles", 2)
    if isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1:
        raise RegistrationError(f"LRSchedule(cycles={cycles!r}): a whole number of cosines, 1 or more")
    if options.get("decay_shape", "sqrt") not in DECAYS:
        raise RegistrationError(f"LRSchedule(decay_shape={options['decay_shape']!r}): choose from {', '.join(DECAYS)}")
