"""``Found``: the module and the samples that made a step bad."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTED = "replay.json"
"""File of a replay with the step and the row at which it starts."""
FOUND = "found-{rank}.json"
"""File of one rank with the values of each step that was looked at."""
GROWN = 10.0
"""How many times its usual value the largest activation or gradient of a module must be to stand out."""
MAX_INDICES = 64
"""Maximum number of indices to print."""


@dataclass(frozen=True, slots=True)
class Found:
    """The module and the samples that made a step bad."""

    step: int
    epoch: int
    batch: int | None
    """Index in the epoch of the batch."""
    loss: float
    activation: str
    """The first module whose outputs stand out, with its class. Empty if none does."""
    gradient: str
    """The first module in the backward pass whose gradients stand out. Empty if none does."""
    indices: tuple[int, ...]
    """Indices in the data set of the samples of the batch. Empty if they are not known."""
    positions: tuple[int, ...]
    """Positions in the batch of the samples that stand out."""
    why: str
    """How they stand out."""
    size: int
    """The number of samples in the batch."""
    rank: int = 0

    @property
    def samples(self) -> tuple[int, ...]:
        """Indices in the data set of the samples that stand out."""
        return tuple(self.indices[position] for position in self.positions) if self.indices else ()

    @property
    def lines(self) -> list[str]:
        """The finding in lines to print."""
        where = f"epoch {self.epoch}" + ("" if self.batch is None else f", batch {self.batch}")
        rank = f", rank {self.rank}" if self.rank else ""
        found = [f"step {self.step} ({where}{rank}): the loss is {self.loss:.6g}"]
        found.append(f"  activations: {f'first in {self.activation}' if self.activation else 'nothing stands out'}")
        found.append(f"  gradients: {f'first in {self.gradient}' if self.gradient else 'nothing stands out'}")
        if self.positions:
            several = "samples" if len(self.positions) > 1 else "sample"
            named = f"index {_list(self.samples)} of the data set" if self.indices else "index not known"
            found.append(f"  {several}: {named}, position {_list(self.positions)} of {self.size} in the batch")
            found.append(f"    {'each ' if len(self.positions) > 1 else 'it '}{self.why}")
        if self.indices:
            found.append(f"  batch: {_list(self.indices)}")
        return found


def read_found(folder: Path, until: str, at: int) -> Found | None:
    """Return the first bad step of a replay.

    Args:
        folder: The folder of the replay.
        until: ``"nan"`` or ``"spike"``.
        at: The step that spikes.
    """
    every: list[tuple[int, list[dict[str, Any]]]] = []
    for path in folder.glob(FOUND.format(rank="*")):
        number = re.search(r"(\d+)", path.name)
        every.append((int(number[1]) if number else 0, json.loads(path.read_text())))
    candidates: list[tuple[int, int, Found]] = []
    for rank, rows in every:
        for index, row in enumerate(rows):
            if _is_bad(row) or (until == "spike" and row["step"] == at):
                candidates.append((row["step"], rank, _found(row, rows[:index], rank)))
                break
    return min(candidates, key=lambda one: one[:2], default=(0, 0, None))[2]


def _is_bad(row: Mapping[str, Any]) -> bool:
    values = [*row["activations"].values(), *row["gradients"].values(), *(batch["loss"] for batch in row["batches"])]
    return not all(map(math.isfinite, values))


def _found(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], rank: int) -> Found:
    batches = row["batches"]
    # First the micro-batches with values that are not finite: the outliers of the others are usual samples.
    bad = [batch for batch in batches if not math.isfinite(batch["loss"]) or batch.get("is_bad")]
    pointing = [batch for batch in bad or batches if batch.get("positions")]
    one = (pointing or bad or sorted(batches, key=lambda batch: -batch["loss"]))[0]
    return Found(
        step=row["step"],
        epoch=row["epoch"],
        batch=one.get("batch"),
        loss=one["loss"],
        activation=_first(row, before, "activations"),
        gradient=_first(row, before, "gradients"),
        indices=tuple(one.get("indices") or ()),
        positions=tuple(one.get("positions", ())),
        why=one.get("why", ""),
        size=one.get("size", 0),
        rank=rank,
    )


def _first(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Return the first module whose value is not finite, or else the first whose value has grown most of all."""
    values: dict[str, float] = row[kind]
    for name, value in values.items():
        if not math.isfinite(value):
            return f"{name}, not finite"
    grown = {}
    for name, value in values.items():
        earlier = sorted(other[kind][name] for other in before if name in other[kind])
        usual = earlier[len(earlier) // 2] if earlier else 0.0
        if usual > 0 and value > GROWN * usual:
            grown[name] = value / usual
    name = next(iter(grown), "")
    return f"{name}, {grown[name]:.0f} times as large as usual" if name else ""


def _list(values: Sequence[int]) -> str:
    shown, more = ", ".join(map(str, values[:MAX_INDICES])), len(values) - MAX_INDICES
    return f"{shown} and {more:,} more" if more > 0 else shown
