"""Fetch one batch of a map-style data set with its own seed, in any process."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from hookline.errors import DataError
from hookline.loop.data.seeding import Apart, mix, seed_process

BATCH = 2
"""Number in the seeds of batches, so that they differ from the seeds of orders."""
Ticket = tuple[int, int, Any, int]
"""The batch to fetch: epoch, number in the epoch, indices, and the part of a split batch (0: not split)."""


class Fetching(Dataset[Any]):
    """A data set of batches around the user's data set, with all that a worker process needs.

    Args:
        loader: The user's loader.
        seed: The seed of the run.
        rank: The rank of this process.
        tells: True to call ``set_epoch`` of the data set. An evaluation is in no epoch.

    Example:
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
        self._tells = tells
        self._told: int | None = None

    def tell_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the data set, once per epoch, also in a persistent worker."""
        if epoch != self._told:
            self._told = epoch
            set_epoch = getattr(self.dataset, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

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
                f"fetched, which would end the epoch without an error: raise IndexError or KeyError instead"
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
    """Return the batch, which is collated already."""
    return batch


def _only_tensors(dataset: Any) -> bool:
    """True if a data set has no random transforms, so that no seeding is needed."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset
