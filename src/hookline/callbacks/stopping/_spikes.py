"""Spikes: the values of a step, the usual values, and the files of bad batches."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hookline.callbacks._paths import write_parts
from hookline.callbacks._trees import walk
from hookline.checkpoint.tensor_file import lay_out
from hookline.errors import MetricError

Method = Literal["zscore", "factor"]
SPREAD = 1.4826
"""Ratio of standard deviation to median absolute deviation for normal distributions."""
LEAST_SPREAD = 0.05
"""Smallest standard deviation, as a fraction of the median.

Without it, almost equal values would make every other value a spike.
"""

FOLDER = "spikes"
TABLE = "spikes.jsonl"
MAX_REPR_CHARS = 200
"""Maximum number of ``repr`` characters of a value that is neither a tensor nor plain."""

Row = dict[str, Any]


class Judgement(NamedTuple):
    """Whether a value is a spike, with the usual value and the distance from it."""

    spike: bool
    usual: float | None = None
    score: float | None = None


class UsualValues:
    """Recent good values, to judge whether a new value is a spike.

    Only a value above the usual values can be a spike. A value that is not finite always is. ``"zscore"`` measures the
    distance from the median in robust standard deviations, ``"factor"`` the ratio to the mean. With fewer than
    ``warmup`` values, no finite value is a spike.

    Example:
        >>> usual = UsualValues("zscore", threshold=8.0, window=50, warmup=3)
        >>> for value in (1.0, 1.1, 0.9, 1.0):
        ...     usual.add(value)
        >>> usual.judge(1.2).spike, usual.judge(3.0).spike, usual.judge(0.0).spike
        (False, True, False)
    """

    __slots__ = ("_method", "_sorted", "_threshold", "_values", "_warmup")

    def __init__(self, method: Method, threshold: float, window: int, warmup: int) -> None:
        self._method, self._threshold, self._warmup = method, threshold, warmup
        self._values: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Add a good value and drop the oldest one if the window is full."""
        if len(self._values) == self._values.maxlen:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)

    def judge(self, value: float) -> Judgement:
        """Return whether the value is a spike, without adding it."""
        if not math.isfinite(value):
            return Judgement(spike=True)
        if len(self._values) < self._warmup:
            return Judgement(spike=False)
        return self._by_factor(value) if self._method == "factor" else self._by_score(value)

    def _by_factor(self, value: float) -> Judgement:
        """Judge a value by its ratio to the mean."""
        mean = math.fsum(self._values) / len(self._values)
        if mean <= 0:
            raise MetricError(
                f"SpikeGuard(method='factor') needs positive values, and their mean is {mean:.6g}: use method='zscore'"
            )
        return Judgement(value > self._threshold * mean, mean, value / mean)

    def _by_score(self, value: float) -> Judgement:
        """Judge a value by its distance from the median, in robust standard deviations."""
        median = _middle(self._sorted)
        least = max(LEAST_SPREAD * abs(median), 1e-12)
        if value - median <= self._threshold * least:  # Most values return here, without the cost of the spread.
            return Judgement(spike=False)
        spread = max(SPREAD * _middle(sorted(abs(other - median) for other in self._sorted)), least)
        score = (value - median) / spread
        return Judgement(score > self._threshold, median, score)

    @property
    def values(self) -> list[float]:
        """Values in the order in which they were added, for a checkpoint."""
        return list(self._values)

    @values.setter
    def values(self, values: Iterable[float]) -> None:
        self._values = deque(values, maxlen=self._values.maxlen)
        self._sorted = sorted(self._values)


def _middle(values: list[float]) -> float:
    """Return the median of sorted values."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


class Measured(NamedTuple):
    """One value of a step: its name, the number of its batch if it has one, and the value."""

    name: str
    batch: int | None
    value: float


class StepWindow:
    """Collector of the batches and losses of one step.

    Losses stay on their device until ``read_losses`` reads them in one transfer.
    """

    __slots__ = ("_counts", "_losses", "batches", "found", "open")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything, for a new step."""
        self.open = self.found = False
        self.batches: dict[int, Any] = {}
        """Batches by their number in the epoch."""
        self._counts: dict[int, int] = {}
        self._losses: list[tuple[str, int, Tensor]] = []

    def add_batch(self, number: int, batch: Any) -> None:
        """Add a batch with its number in the epoch."""
        self.batches[number] = batch
        self._counts[number] = 0

    def add_loss(self, loss: Tensor) -> None:
        """Add a loss of the last batch.

        A batch may have several losses, as in a GAN. The first loss is compared with first losses only, and so on.
        """
        number = next(reversed(self._counts), 0)
        place = self._counts.get(number, 0)
        self._counts[number] = place + 1
        self._losses.append((f"loss/{place}", number, loss))

    def read_losses(self) -> list[Measured]:
        """Return the losses since the last call, read in one transfer."""
        losses, self._losses = self._losses, []
        if len(losses) == 1:
            name, number, loss = losses[0]
            return [Measured(name, number, loss.item())]
        values = torch.stack([loss.double() for _, _, loss in losses]).tolist() if losses else []
        return [Measured(name, number, value) for (name, number, _), value in zip(losses, values, strict=True)]


class BadBatches:
    """Writer of ``spikes.jsonl``, with one row per spike, and of the tensors of the batches.

    The tensors are in safetensors files next to the table.
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self._folder = folder / FOLDER / (f"rank-{rank}" if rank else "")

    def tidy(self, rows: list[Row]) -> None:
        """Remove the files of spikes that a new or resumed run has not seen."""
        if not self._folder.is_dir():
            return
        known = {row["file"] for row in rows}
        for path in self._folder.glob("epoch-*.safetensors"):
            if path.name not in known:
                path.unlink()
        self._write_table(rows)

    def keep(self, rows: list[Row], batches: Mapping[int, Any]) -> Path:
        """Write the tensors of the last row's batches, by batch number, and the table of all rows."""
        row = rows[-1]
        tensors: dict[str, torch.Tensor] = {}
        others: dict[str, Any] = {}
        for number, batch in batches.items():
            for name, part in _parts(batch, str(number)):
                if isinstance(part, torch.Tensor):
                    tensors[name] = part.detach()
                else:
                    others[name] = part
        if others:
            row["others"] = others
        path = self._folder / str(row["file"])
        write_parts(path, lay_out(tensors, "a bad batch: ").parts())
        self._write_table(rows)
        return path

    def _write_table(self, rows: list[Row]) -> None:
        """Replace the table."""
        write_parts(self._folder / TABLE, (f"{json.dumps(row)}\n".encode() for row in rows))


def _parts(batch: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch with their paths in it, and other values in a form for JSON."""
    for path, leaf in walk(batch, _is_plain):
        yield "/".join(map(str, (name, *path))), _storable(leaf)


def _is_plain(value: Any) -> bool:
    """True for a list or tuple of strings and numbers."""
    return isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value)


def _storable(value: Any) -> Any:
    """Return a tensor for an array of numbers, and a string for a value that JSON cannot hold."""
    if type(value).__module__ == "numpy" and value.dtype.kind in "biuf":
        return torch.as_tensor(value)
    plain = isinstance(value, torch.Tensor | str | int | float | list | tuple | None)
    return value if plain else repr(value)[:MAX_REPR_CHARS]
