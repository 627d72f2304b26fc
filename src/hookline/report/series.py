"""``Series``: all values of one metric, in compact arrays."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from itertools import islice
from operator import lt
from typing import Self

from hookline.records import Kind


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one metric, 32 bytes per row, in four columns of the same length.

    >>> series = Series("val/loss", "eval")
    >>> series.add(10, 1, 2.5, 0.7)
    >>> series.values[-1], len(series)
    (0.7, 1)
    """

    name: str
    kind: Kind
    steps: array[int] = field(default_factory=lambda: array("q"))
    epochs: array[int] = field(default_factory=lambda: array("q"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.values)

    def add(self, step: int, epoch: int, seconds: float, value: float) -> None:
        """Add one row.

        Raises:
            TypeError: If a value is not a number. The row is not added.
            OverflowError: If a value is too large. The row is not added.
        """
        try:
            self.steps.append(step)
            self.epochs.append(epoch)
            self.seconds.append(seconds)
            self.values.append(value)
        except (TypeError, OverflowError):
            whole = len(self.values)
            for column in (self.steps, self.epochs, self.seconds):
                del column[whole:]
            raise

    def ordered(self) -> Self:
        """Return the series with ascending steps. Of two values at one step, the later one is kept."""
        if all(map(lt, self.steps, islice(self.steps, 1, None))):
            return self
        places = {step: place for place, step in enumerate(self.steps)}
        return self.pick([places[step] for step in sorted(places)])

    def pick(self, places: list[int]) -> Self:
        """Return only the rows at these indices."""
        return type(self)(
            self.name,
            self.kind,
            array("q", map(self.steps.__getitem__, places)),
            array("q", map(self.epochs.__getitem__, places)),
            array("d", map(self.seconds.__getitem__, places)),
            array("d", map(self.values.__getitem__, places)),
        )

    def lowest(self) -> int | None:
        """Return the index of the smallest finite value."""
        finite = self._finite()
        return self.values.index(min(finite)) if finite else None

    def highest(self) -> int | None:
        """Return the index of the largest finite value."""
        finite = self._finite()
        return self.values.index(max(finite)) if finite else None

    def _finite(self) -> array[float]:
        if all(map(math.isfinite, self.values)):
            return self.values
        return array("d", filter(math.isfinite, self.values))
