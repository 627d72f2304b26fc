"""One batch of a map-style data set, fetched under a seed of its own, in whatever process."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from hookline.errors import DataError
from hookline.loop.data.seeding import Apart, mix, seed_process

BATCH = 2
"""Keeps the seeds of batches apart from those of orders."""
Ticket = tuple[int, int, Any, int]
"""Which batch is to be fetched: the epoch, its number in it, its indices; and which piece, unless it is whole (0)."""


class Fetching(Dataset[Any]):
    """A data set of whole batches around the user's own, with what a worker process must know of the run.

    >>> loader = DataLoader([1, 2, 3, 4], batch_size=2)
    >>> Fetching(loader, seed=0, rank=0)[0, 1, [2, 3], 0]
    tensor([3, 4])
    """

    def __init__(self, loader: DataLoader[Any], seed: int, rank: int, *, tells: bool = True) -> None:
        self.dataset: Any = loader.dataset
        self._collate = loader.collate_fn
        self._batched = loader.batch_sampler is not None
        self._seed, self._rank = seed, rank
        self._random = not (_only_tensors(self.dataset) and self._collate is default_collate)
        self._apart = Apart()
        self._tells = tells  # not in an evaluation, which is in no epoch
        self._told: int | None = None

    def tell_epoch(self, epoch: int) -> None:
        """A persistent worker was started in an earlier epoch: it hears of a new one with the first ticket of it."""
        if epoch != self._told:
            self._told = epoch
            tell = getattr(self.dataset, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def __getitem__(self, ticket: Ticket) -> Any:
        epoch, number, indices, piece = ticket
        if self._tells:
            self.tell_epoch(epoch)
        try:
            if not self._random:
                return self._fetch(indices)
            seed = mix(self._seed, epoch, BATCH, number, self._rank, *((piece,) if piece else ()))
            if get_worker_info() is not None:
                seed_process(seed)
                return self._fetch(indices)
            return self._apart.at(seed).run(self._fetch, indices)
        except StopIteration as error:
            raise DataError(
                f"{type(self.dataset).__name__} raised StopIteration while batch {number} of epoch {epoch} was "
                f"fetched, which would end the epoch without a word: raise IndexError or KeyError instead"
            ) from error

    def _fetch(self, indices: Any) -> Any:
        dataset = self.dataset
        if not self._batched:
            samples = dataset[indices]
        elif getattr(dataset, "__getitems__", None):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[index] for index in indices]
        return self._collate(samples)


def as_it_is(batch: Any) -> Any:
    """The batch is collated already."""
    return batch


def _only_tensors(dataset: Any) -> bool:
    """There is nothing random in it, so that nothing need be seeded."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset
