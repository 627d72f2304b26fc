"""The vote: what all ranks must know of a step, added up in one small vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hookline.distributed.group import Group

LONG_STEP: Final = 0.05
"""Seconds: from here on a vote in each step is not felt."""
APART: Final = 0.1
"""Seconds between two votes where steps are shorter."""
MOST_APART: Final = 1000
"""Steps."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one rank says. Of a wish (``stop`` to ``signal``) only counts how many ranks have it."""

    samples: float = 0.0
    tokens: float = 0.0
    stop: float = 0.0
    save: float = 0.0
    plan: float = 0.0
    """A callback wants its own plan saved; which one, ranks tell one another when they save."""
    evaluate: float = 0.0
    skip: float = 0.0
    signal: float = 0.0
    leaving: float = 0.0
    """It has left its own loop, and goes on only until all know it."""
    abandons: float = 0.0
    """It wants to leave the evaluation under way, of which nothing is to stay."""
    logged: float = 0.0
    """At an edge: it has logged something that has no row yet."""
    weighted: float = 0.0
    """It gives weights of its own, which the number of samples does not tell."""
    undone: float = 0.0
    """How often steps were taken back since the last vote: all ranks must have done so alike."""
    undone_squared: float = 0.0
    seconds: float = 0.0
    """Rank zero's clock."""


FIELDS: Final = tuple(Ballot.__dataclass_fields__)


class Votes:
    """Holds a vote at each step, or where steps are short every few steps, as all ranks compute alike."""

    def __init__(self, group: Group, *, apart: float = APART, long_step: float = LONG_STEP) -> None:
        self._group, self._apart, self._long_step = group, apart, long_step
        self._sums: Callable[[], list[float]] | None = None
        self._last: tuple[int, float] | None = None
        self.every = 1
        """Steps from one vote to the next."""
        self.always = False
        """Whether there is something in each step that only a vote can tell."""
        self._wait = 0
        self.held = 0
        """How many there were."""

    @property
    def under_way(self) -> bool:
        return self._sums is not None

    def next_step(self) -> None:
        """By all, once before each step."""
        self._wait -= 1

    @property
    def is_due(self) -> bool:
        """True if the step that was begun last has a vote."""
        return self.always or self._wait <= 0

    def begin(self, ballot: Ballot, weights: Sequence[float]) -> None:
        """By all: launched before the last backward of a step, so that it is done when that is.

        One that is under way is ended, and says nothing: an edge has come inside the step, whose vote is held again.
        """
        if self._sums is not None:
            self._sums()
        self._sums = self._group.add_up([*(getattr(ballot, name) for name in FIELDS), *weights])
        self.held += 1

    def end(self, step: int) -> tuple[Ballot, list[float]]:
        """By all: the sums, and the sums of the weights."""
        sums, self._sums = self._sums, None
        if sums is None:
            raise RuntimeError(f"no vote was begun at step {step}")
        found = sums()
        ballot = Ballot(*found[: len(FIELDS)])
        self._plan(step, ballot.seconds)
        return ballot, found[len(FIELDS) :]

    def begin_anew(self) -> None:
        """What is voted on begins, and may be slower or faster than before: the first two votes tell."""
        self._last, self.every, self._wait = None, 1, 1

    def forget(self) -> None:
        """After an error: nobody waits for it."""
        self._sums = None

    def _plan(self, step: int, seconds: float) -> None:
        """From rank zero's time alone, so that all ranks come to the same."""
        if self._last is not None and step > self._last[0]:
            took = max((seconds - self._last[1]) / (step - self._last[0]), 1e-6)
            most = min(2 * self.every, MOST_APART)  # one step that was fast says little of those that follow
            self.every = 1 if took >= self._long_step else min(math.ceil(self._apart / took), most)
        self._last, self._wait = (step, seconds), self.every
