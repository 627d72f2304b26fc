"""Time spent in the hooks of each callback, measured in one step out of 64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, TypeVar

SAMPLE = 64


T = TypeVar("T")


class Cost:
    """Number of timed calls of one hook and their total time in nanoseconds."""

    __slots__ = ("calls", "ns")

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0

    def timed(self, call: Callable[[], T]) -> T:
        """Call a function, add its time and return its result. The number of calls stays the same."""
        start = perf_counter_ns()
        try:
            return call()
        finally:
            self.ns += perf_counter_ns() - start

    def count_call(self) -> None:
        """Count one call, whose time ``timed`` adds."""
        self.calls += 1


class Timed:
    """Hook that adds its calls and its time to a ``Cost``.

    Args:
        call: The hook.
        cost: The cost to add to.
    """

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
    """Row of the cost table. ``calls`` and ``seconds`` are scaled up from the sampled steps."""

    callback: str
    hook: str
    calls: int
    seconds: float


class Sampler:
    """Choose one pseudo-random step out of each group of 64.

    At a fixed position, a callback with ``every="64st"`` would be measured always or never. The position depends only
    on the index of the group, so that no group is sampled twice and the user's global random state does not change.
    """

    __slots__ = ("needed", "sampled", "seen")

    def __init__(self) -> None:
        self.needed = False
        """True if a callback has a hook for an event of every step."""
        self.sampled = 0
        self.seen = 0

    def see(self, steps: int) -> None:
        """Count steps, sampled or not."""
        self.seen += steps

    def count_sample(self) -> None:
        """Count a sampled step."""
        self.sampled += 1

    def next_after(self, step: int) -> int:
        """Return the next sampled step after ``step``."""
        group = step // SAMPLE
        pick = _pick(group)
        return pick if pick > step else _pick(group + 1)


def _pick(group: int) -> int:
    # Multiplying by the golden ratio in 64 bits scatters the positions. Importing `random` would take 3 ms.
    return group * SAMPLE + ((group + 1) * 0x9E3779B97F4A7C15 % 2**64) // (2**64 // SAMPLE)
