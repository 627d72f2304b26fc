"""``feed_of``: the training batches of a loader, from any batch of any epoch on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import FunctionType
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, MapDataPipe

from hookline.distributed.random_states import same_random_state
from hookline.errors import DataError
from hookline.loop.data.batches import is_one_shot, set_epoch, sure_length
from hookline.loop.data.map import MapFeed
from hookline.loop.data.notes import sequence_notes
from hookline.loop.data.stream import OneShotFeed, StatefulFeed, StreamFeed


class Feed(Protocol):
    """The batches of one loader. Reading them does not change the program's random states."""

    length: int | None
    """The number of batches in an epoch, if it is reliable. ``iterate`` reads it again: data may grow."""
    notes: tuple[str, ...]
    """Reasons why a resume is slow or not exact."""

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch, from a batch on. Earlier iterators must not be used again."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that does not follow from the epoch and the number of the batch."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None:
        """End the worker processes."""
        ...


def feed_of(loader: Any, *, seed: int, rank: int = 0) -> Feed:
    """Return the feed of a loader of any kind.

    The order of the data is the same on all ranks. Random transforms inside batches differ.

    Args:
        loader: The loader.
        seed: The seed of the run.
        rank: The rank of this process.

    >>> feed = feed_of(["a", "b", "c"], seed=0)
    >>> list(feed.iterate(epoch=0, start=1)), feed.length, feed.notes
    (['b', 'c'], 3, ())
    """
    if callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None)):
        return StatefulFeed(loader, seed=seed, rank=rank)
    if type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset | MapDataPipe):
        return MapFeed(loader, seed=seed, rank=rank)
    if isinstance(loader, Sequence):
        return SequenceFeed(loader)
    if is_one_shot(loader):
        return OneShotFeed(loader, seed=seed, rank=rank)
    return StreamFeed(loader, seed=seed, rank=rank)


def is_by_index(loader: Sequence[Any]) -> bool:
    """True if a sequence does not define ``__iter__``, so that its items are all batches."""
    iteration = type(loader).__iter__
    return iteration is Sequence.__iter__ or not isinstance(iteration, FunctionType)


class SequenceFeed:
    """The feed of a list of batches, or of another sequence.

    Args:
        loader: The sequence.
    """

    def __init__(self, loader: Sequence[Any]) -> None:
        self._loader = loader
        self._by_index = is_by_index(loader)
        self.length = sure_length(loader)
        self.notes = () if self._by_index else sequence_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches from ``start`` on."""
        loader = self._loader
        set_epoch(loader, epoch)
        self.length = sure_length(loader)
        if start > len(loader):
            raise DataError(
                f"the epoch is to continue at batch {start} and the {type(loader).__name__} has only {len(loader)}: "
                f"it is not the one of the run that was saved"
            )
        if not start:
            return iter(loader)
        if self._by_index:
            return map(loader.__getitem__, range(start, len(loader)))
        iterator = iter(loader)
        with same_random_state():
            for _ in islice(iterator, start):
                pass
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the number of the batch is the position."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        """Do nothing: there are no workers."""
