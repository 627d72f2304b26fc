"""What the exact position in the data costs: per batch against a plain loader, and for a late start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from table import Figure, Section, quartiles, verdict
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hookline.loop.data import feed_of

BATCH_SIZE = 32
BATCHES = 2000
SAMPLES = 32_000_000
LATE = SAMPLES // BATCH_SIZE - 10
"""The batch at which an epoch of 32 million samples is gone on with: the millionth, nearly."""
LIMIT_US = 217
"""What a batch of 32 would cost if every sample had a seed of its own."""
LIMIT_STREAM_US = 15
"""What a batch of a loader of which nothing is known may cost: its random states are exchanged with the program's."""
LIMIT_LATE = 1.3
"""A late start is mostly the permutation of the epoch: what is on top of it may take a third of that."""


class Own(Dataset[Any]):
    """A data set of which nothing is known, so that every batch is seeded."""

    def __init__(self, samples: int) -> None:
        self._rows = torch.zeros(samples, 8)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]


class OwnLoader(DataLoader[Any]):
    """A loader with its own way to iterate, such as one that prefetches."""

    def __iter__(self) -> Any:
        return super().__iter__()


class StatefulLoader(OwnLoader):
    """One that saves its position itself, as torchdata's ``StatefulDataLoader`` does."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def feed_cost(bar: Callable[[str], Iterable[int]]) -> Section:
    torch.set_num_threads(1)
    own, tensors = Own(BATCH_SIZE * BATCHES), TensorDataset(torch.zeros(BATCH_SIZE * BATCHES, 8))
    batches = [torch.zeros(BATCH_SIZE, 8)] * BATCHES
    per_batch = {
        "an own data set": ([], _loader(own)),
        "a TensorDataset": ([], _loader(tensors)),
        "a list of batches": ([], batches),
    }
    streams = {
        "a DataLoader with its own __iter__": ([], OwnLoader(tensors, batch_size=BATCH_SIZE, shuffle=True)),
        "a loader with state_dict": ([], StatefulLoader(tensors, batch_size=BATCH_SIZE, shuffle=True)),
    }
    late: list[float] = []
    unshuffled: list[float] = []
    for _ in bar("feed"):
        for added, loader in (*per_batch.values(), *streams.values()):
            added.append(_added(loader))
        late.append(_late_start())
        unshuffled.append(_late_start_in_order())
    figures = [_per_batch(f"a batch of {what}, added", added) for what, (added, _) in per_batch.items()]
    figures += [_per_batch(f"a batch of {what}, added", added, LIMIT_STREAM_US) for what, (added, _) in streams.items()]
    low, high = quartiles(late)
    ratio = statistics.median(late)
    figures.append(
        Figure(
            "going on at batch 999,990 of 1,000,000",
            f"{ratio:.2f} x",
            f"quartiles {low:.2f} to {high:.2f}",
            f"< {LIMIT_LATE} x",
            verdict(ratio < LIMIT_LATE),
        )
    )
    seconds = statistics.median(unshuffled)
    figures.append(
        Figure(
            "the same without a permutation",
            f"{seconds * 1e3:.1f} ms",
            f"at most {max(unshuffled) * 1e3:.1f}",
            "< 100 ms",
            verdict(seconds < 0.1),
        )
    )
    return Section(
        "The data position",
        figures,
        f"Shuffled, {BATCH_SIZE} samples a batch, no workers. A batch is fetched from the feed right after one from "
        f"the plain loader, then one from another plain loader, whose difference is taken off; CPU time, the median of "
        f"{BATCHES} and of the rounds. Going on: from `iterate` to the first batch, as a multiple of `torch.randperm` "
        f"of the {SAMPLES:,} indices just before.",
    )


def _loader(dataset: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)


def _added(loader: Any) -> float:
    """Microseconds that a batch takes more than from the plain loader, less what a second plain one takes more."""
    plain, ours, again = iter(loader), feed_of(loader, seed=0).iterate(0, 0), iter(loader)
    ours_added, null = [], []
    for _ in range(BATCHES - 1):
        first, second, third = _seconds(plain), _seconds(ours), _seconds(again)
        ours_added.append(second - first)
        null.append(third - first)
    return (statistics.median(ours_added) - statistics.median(null)) / 1e3


def _seconds(iterator: Iterator[Any]) -> int:
    start = time.thread_time_ns()
    next(iterator)
    return time.thread_time_ns() - start


def _late_start() -> float:
    loader: DataLoader[Any] = DataLoader(range(SAMPLES), batch_size=BATCH_SIZE, shuffle=True)  # type: ignore[arg-type]
    feed = feed_of(loader, seed=0)
    start = time.perf_counter()
    torch.randperm(SAMPLES)
    made = time.perf_counter()
    next(feed.iterate(0, LATE))
    return (time.perf_counter() - made) / (made - start)


def _late_start_in_order() -> float:
    loader: DataLoader[Any] = DataLoader(range(SAMPLES), batch_size=BATCH_SIZE)  # type: ignore[arg-type]
    feed = feed_of(loader, seed=0)
    start = time.perf_counter()
    next(feed.iterate(0, LATE))
    return time.perf_counter() - start


def _per_batch(what: str, added: list[float], limit: float = LIMIT_US) -> Figure:
    value = statistics.median(added)
    low, high = quartiles(added)
    return Figure(
        what, f"{value:.1f} µs", f"quartiles {low:.1f} to {high:.1f}", f"< {limit} µs", verdict(value < limit)
    )
