"""What each callback costs: always known, because one step in 64 goes through timed hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, TypeVar

SAMPLE = 64


T = TypeVar("T")


class Cost:
    """Calls and nanoseconds of one hook of one callback, as far as they were timed."""

    __slots__ = ("calls", "ns")

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0

    def timed(self, call: Callable[[], T]) -> T:
        """What a part of a call gives back; its time is added."""
        start = perf_counter_ns()
        try:
            return call()
        finally:
            self.ns += perf_counter_ns() - start


class Timed:
    """A hook that adds what it takes to a ``Cost``."""

    __slots__ = ("call", "cost")

    def __init__(self, call: Callable[..., Any], cost: Cost) -> None:
        self.call = call
        self.cost = cost

    def __call__(self, run: Any, **payload: object) -> None:
        start = perf_counter_ns()
        try:
            self.call(run, **payload)
        finally:
            self.cost.ns += perf_counter_ns() - start
            self.cost.calls += 1


@dataclass(frozen=True, slots=True)
class CostRow:
    """One line of the cost table; ``calls`` and ``seconds`` are scaled up from the sampled steps."""

    callback: str
    hook: str
    calls: int
    seconds: float


class Sampler:
    """Picks one step at a pseudo-random place in each group of 64.

    A fixed place would count a callback with ``every="64st"`` always or never. The place depends on the
    group alone: no group is sampled twice, and the global random state stays the user's.
    """

    __slots__ = ("needed", "sampled", "seen")

    def __init__(self) -> None:
        self.needed = False
        """Whether anybody hears an event of every step."""
        self.sampled = 0
        self.seen = 0

    def next_after(self, step: int) -> int:
        """The next step to sample that comes after ``step``."""
        group = step // SAMPLE
        pick = _pick(group)
        return pick if pick > step else _pick(group + 1)


def _pick(group: int) -> int:
    # Multiplied by the golden ratio, in 64 bits: scattered, and without the 3 ms that importing `random` takes.
    return group * SAMPLE + ((group + 1) * 0x9E3779B97F4A7C15 % 2**64) // (2**64 // SAMPLE)
