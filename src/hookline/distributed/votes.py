"""Votes: the values of a step that all ranks must know, summed in one small vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hookline.distributed.group import Group

LONG_STEP: Final = 0.05
"""Seconds of a step from which every step has a vote, because its cost does not matter."""
APART: Final = 0.1
"""Seconds between two votes if steps are shorter."""
MOST_APART: Final = 1000
"""Largest number of steps between two votes."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """The vote of one rank.

    Requests (``stop`` to ``signal``) are 1 or 0. Their sum is the number of ranks with the request.
    """

    samples: float = 0.0
    tokens: float = 0.0
    stop: float = 0.0
    save: float = 0.0
    plan: float = 0.0
    """A callback requests a save by its own plan. The ranks exchange the plan when they save."""
    evaluate: float = 0.0
    control: float = 0.0
    """Rank zero has found requests of another process in the run's folder."""
    skip: float = 0.0
    signal: float = 0.0
    abandons: float = 0.0
    """The rank requests to leave the current evaluation and to drop its results."""
    logged: float = 0.0
    """In a vote at an edge: the rank has logged a value that has no row yet."""
    weighted: float = 0.0
    """The rank needs a vote in every step: for weights or counts that it alone knows, or for a skipped step."""
    changes: float = 0.0
    """The rank has changed how the run trains since the last vote. The ranks then compare what they have changed."""
    seconds: float = 0.0
    """Clock of rank zero; 0 on the other ranks."""


FIELDS: Final = tuple(Ballot.__dataclass_fields__)


class Votes:
    """Hold a vote in every step, or every few steps if steps are short.

    All ranks compute the same interval.

    Args:
        group: The processes of the run.
        apart: Seconds between two votes if steps are short.
        long_step: Seconds of a step from which every step has a vote.
    """

    def __init__(self, group: Group, *, apart: float = APART, long_step: float = LONG_STEP) -> None:
        self._group, self._apart, self._long_step = group, apart, long_step
        self._sums: Callable[[], list[float]] | None = None
        self._last: tuple[int, float] | None = None
        self.every = 1
        """Steps from one vote to the next."""
        self.always = False
        """True if each step has values that the ranks can learn only from a vote."""
        self._wait = 0
        self.held = 0
        """Number of votes so far."""

    @property
    def under_way(self) -> bool:
        return self._sums is not None

    def hold_always(self) -> None:
        """Hold a vote in every step from now on. All ranks must call it at the same step."""
        self.always = True

    def next_step(self) -> None:
        """Count a step. All ranks must call it once before each step."""
        self._wait -= 1

    @property
    def is_due(self) -> bool:
        """True if the current step has a vote."""
        return self.always or self._wait <= 0

    def begin(self, ballot: Ballot, weights: Sequence[float]) -> None:
        """Start a vote. All ranks must call it.

        The vote of a step starts before the last backward, so that it is done when the backward is. If a vote is under
        way, it ends without a result: an edge has come inside the step, and the vote of the step is held again.

        Args:
            ballot: The vote of this rank.
            weights: The weight of this rank for each optimizer.
        """
        if self._sums is not None:
            self._sums()
        self._sums = self._group.add_up([*(getattr(ballot, name) for name in FIELDS), *weights])
        self.held += 1

    def end(self, step: int) -> tuple[Ballot, list[float]]:
        """Wait for the vote, and return the sums of ballots and weights. All ranks must call it."""
        sums, self._sums = self._sums, None
        if sums is None:
            raise RuntimeError(f"no vote was begun at step {step}")
        found = sums()
        ballot = Ballot(*found[: len(FIELDS)])
        self._plan(step, ballot.seconds)
        return ballot, found[len(FIELDS) :]

    def reset_interval(self) -> None:
        """Reset the interval, because steps may be slower or faster now. Two votes measure it again."""
        self._last, self.every, self._wait = None, 1, 1

    def drop(self) -> None:
        """Drop the vote under way. No rank waits for it after an error."""
        self._sums = None

    def _plan(self, step: int, seconds: float) -> None:
        """Compute the interval from the clock of rank zero, so that all ranks get the same one."""
        if self._last is not None and step > self._last[0]:
            took = max((seconds - self._last[1]) / (step - self._last[0]), 1e-6)
            most = min(2 * self.every, MOST_APART)  # The steps after one fast step may be slow again.
            self.every = 1 if took >= self._long_step else min(math.ceil(self._apart / took), most)
        self._last, self._wait = (step, seconds), self.every
