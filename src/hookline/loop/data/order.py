"""The order of an epoch: a function of the seed and the epoch. Skipping reads no data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from hookline.errors import DataError
from hookline.loop.data.seeding import Apart, mix

ORDER = 1
"""Number in the seeds of orders, so that they differ from the seeds of batches."""
BLOCK = 16
"""Number of batches whose indices are read at once, which is faster than one by one."""


class Order:
    """The indices of each batch in an epoch. Without a batch sampler, single indices.

    A shuffled or sequential order is a slice of a tensor or a range, so that a late start costs nothing. Any other
    sampler runs with separate random states.

    Args:
        loader: The loader.
        seed: The seed of the run.

    Example:
        >>> loader = DataLoader(list(range(6)), batch_size=2, shuffle=True)
        >>> order = Order(loader, seed=0)
        >>> list(order.indices(epoch=3, start=1)) == list(order.indices(epoch=3, start=0))[1:]
        True
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._seed = seed
        parts = (self._sampler, getattr(self._sampler, "sampler", None))
        held = [value for part in parts if hasattr(part, "__dict__") for value in vars(part).values()]
        self._generators = [value for value in held if isinstance(value, torch.Generator)]

    def indices(self, epoch: int, start: int) -> Iterator[Any]:
        """Iterate over the indices of each batch of an epoch, from a batch on."""
        seed = mix(self._seed, epoch, ORDER)
        sampler = self._sampler
        if type(sampler) is BatchSampler and _can_be_cut(sampler.sampler):
            return _cut_batches(_whole(sampler.sampler, seed), sampler.batch_size, sampler.drop_last, start)
        if _can_be_cut(sampler):
            whole = _whole(sampler, seed)
            return (int(whole[index]) for index in range(_checked(start, len(whole)), len(whole)))
        return self._run(seed, start)

    def _run(self, seed: int, start: int) -> Iterator[Any]:
        apart = Apart(self._generators, goes_on=True).at(seed)
        # A user's sampler may depend on the state of training, so only one batch is read from it at a time.
        block = BLOCK if type(self._sampler).__module__.startswith("torch.") and self._is_torchs_inside() else 1
        indices = apart.run(iter, self._sampler)
        _checked(start, apart.run(_skip, indices, start))
        while some := apart.run(_take, indices, block):
            yield from some

    def _is_torchs_inside(self) -> bool:
        inside = getattr(self._sampler, "sampler", None)
        return inside is None or type(inside).__module__.startswith("torch.")


def _take(indices: Iterator[Any], count: int) -> list[Any]:
    return list(islice(indices, count))


def _skip(indices: Iterator[Any], count: int) -> int:
    return sum(1 for _ in islice(indices, count))


def _can_be_cut(sampler: Any) -> bool:
    return type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)


def _whole(sampler: Any, seed: int) -> torch.Tensor | range:
    """Return all indices of an epoch as a tensor or a range.

    A list of 32 million would take seconds.
    """
    size = len(sampler.data_source)
    if type(sampler) is SequentialSampler or not size:  # The data set may have become empty since the last epoch.
        return range(size)
    given = sampler.generator
    generator = torch.Generator().manual_seed(seed if given is None else mix(seed, given.initial_seed()))
    times = -(-sampler.num_samples // size)
    shuffled = [torch.randperm(size, generator=generator) for _ in range(times)]
    return (shuffled[0] if times == 1 else torch.cat(shuffled))[: sampler.num_samples]


def _cut_batches(whole: torch.Tensor | range, size: int, drop_last: bool, start: int) -> Iterator[list[int]]:
    count = len(whole) // size if drop_last else -(-len(whole) // size)
    end = count * size
    for first in range(_checked(start, count) * size, end, BLOCK * size):
        cut = whole[first : min(first + BLOCK * size, end)]
        block = list(cut) if isinstance(cut, range) else cut.tolist()
        for index in range(0, len(block), size):
            yield block[index : index + size]


def _checked(start: int, count: int) -> int:
    """Return ``start``.

    Raise an error if it is after the end: the data has changed since the save.
    """
    if start > count:
        raise DataError(
            f"the epoch is to continue at batch {start} and has only {count}: "
            f"the data set, its batch size or its sampler is not the one of the run that was saved"
        )
    return start
