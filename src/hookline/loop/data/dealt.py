"""Feeds of data that is read by index, for one of several ranks.

Each rank reads its shard only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, default_collate

from hookline.errors import DataError
from hookline.loop.data.agreement import Circle, check_alike, digest
from hookline.loop.data.batches import length, set_epoch, sure_length
from hookline.loop.data.map import DealtTickets, MapFeed
from hookline.loop.data.shard_batch import ShardBatch
from hookline.loop.data.stripes import Share, Stripes


class SharedFeed:
    """Base class of the feeds of one rank among several.

    Args:
        circle: The group of all ranks.
        share: The shard of this rank.
    """

    length: int | None
    """The number of the loader's batches in an epoch, if it is reliable. ``iterate`` reads it again."""
    notes: tuple[str, ...] = ()
    """Reasons why a resume is slow or not exact."""
    stride: int
    """The number of batches that this rank's loader advances in one round of all ranks."""
    own: int = 1
    """The number of ranks among which the loader itself shards the data. 1 if each rank can read all of it."""
    limit: float = math.inf
    """The largest number of batches that all ranks together take in an epoch."""
    begins_idle = False
    """True if the first batch of the current iteration is padding on this rank."""

    def __init__(self, circle: Circle, share: Share) -> None:
        self.circle, self.share = circle, share

    def join(self, circle: Circle) -> None:
        """Set the group of all ranks. Each fit has its own."""
        self.circle = circle

    def set_limit(self, batches: float) -> None:
        """Set the largest number of batches that all ranks together take in an epoch."""
        self.limit = batches

    def iterate(self, epoch: int, start: int) -> Iterator[ShardBatch]:
        """Return the batches of this rank in an epoch. All ranks must call it.

        Args:
            epoch: The epoch.
            start: The number of the loader's batches to skip.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state that does not follow from the epoch and the number of batches."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of ``state_dict``. By default there is none."""

    def close(self) -> None:
        """End the worker processes."""


class DealtMap(SharedFeed):
    """The feed of a plain ``DataLoader`` over a map-style data set.

    A batch is the same as in one process: its random transforms depend on the seed, the epoch and its number. Only the
    last batches of an epoch may be split into smaller ones.

    Args:
        loader: The loader.
        seed: The seed of the run.
        circle: The group of all ranks.
        share: The shard of this rank.
        evaluates: True in an evaluation or prediction.
    """

    def __init__(
        self, loader: DataLoader[Any], seed: int, circle: Circle, share: Share, *, evaluates: bool = False
    ) -> None:
        super().__init__(circle, share)
        # A user's batch sampler decides which samples must be in one batch, so its batches are not split.
        divisible = type(loader.batch_sampler) is BatchSampler
        stripes = Stripes(share, counted=loader.batch_sampler is not None, divisible=divisible, splits=not evaluates)
        self._inner = MapFeed(loader, seed=seed, stripes=stripes, shares=share.shares, tells=not evaluates)
        self._data = loader.dataset
        self.tickets = self._inner.tickets
        # Another collate function may leave samples out, so that only the batch shows how many there are.
        self._sure = loader.collate_fn is default_collate
        self.length, self.notes, self.stride = self._inner.length, self._inner.notes, share.shares

    def iterate(self, epoch: int, start: int) -> Iterator[ShardBatch]:
        tickets = self.tickets
        if not isinstance(tickets, DealtTickets):
            raise TypeError(f"{type(tickets).__name__} deals nothing out")
        tickets.set_limit(self.limit)
        batches = self._inner.iterate(epoch, start)
        self.length = self._inner.length
        group = tickets.group[: max(0, int(min(len(tickets.group), self.limit - start)))]
        self.begins_idle = self.share.part >= len(group)
        check_alike(
            self.circle,
            "the data set has a size and an order of",
            [length(self._data), digest(group)],
            "give all ranks the same data set and a sampler that draws from torch, random or numpy.random, not from a "
            "generator that is seeded by the rank; where each rank has its own data set, set sharded = True on it",
        )
        return self._shard_batches(batches, tickets)

    def _shard_batches(self, batches: Iterator[Any], tickets: DealtTickets) -> Iterator[ShardBatch]:
        for batch in batches:
            piece = tickets.dealt.popleft()
            known = piece.known if self._sure else None
            yield ShardBatch(batch, piece.counts, piece.samples, known, piece.is_last, piece.first, piece.then_idle)

    def close(self) -> None:
        self._inner.close()


class DealtSequence(SharedFeed):
    """The feed of a list of batches, or of another sequence. Batches are never split.

    Args:
        loader: The sequence.
        circle: The group of all ranks.
        share: The shard of this rank.
        count: Counts the samples of a batch, in an evaluation.
        tells: True to call ``set_epoch`` of the loader.
    """

    def __init__(
        self,
        loader: Sequence[Any],
        circle: Circle,
        share: Share,
        count: Callable[[Any], tuple[int, int | None]] | None,
        *,
        tells: bool = True,
    ) -> None:
        super().__init__(circle, share)
        self._loader, self._tells = loader, tells
        # In a list all batches can be counted at no cost. Another sequence may read them from disk.
        self._count = count if type(loader) in (list, tuple) else None
        self.length, self.stride = sure_length(loader), share.shares

    def iterate(self, epoch: int, start: int) -> Iterator[ShardBatch]:
        if self._tells:
            set_epoch(self._loader, epoch)
        size = self.length = len(self._loader)
        if start > size:
            raise DataError(
                f"the epoch is to continue at batch {start} and the {type(self._loader).__name__} has only {size}: "
                f"it is not the one of the run that was saved"
            )
        fix = f"give all ranks the same {type(self._loader).__name__}: each takes its own batches out of it"
        check_alike(self.circle, "the number of batches is", size, fix)
        end = int(min(size, self.limit))
        self.begins_idle = start + self.share.part >= end
        return self._shard_batches(start, end)

    def _shard_batches(self, start: int, end: int) -> Iterator[ShardBatch]:
        loader, (shares, part) = self._loader, self.share
        batch, first = None, 0
        for number in range(start, end, shares):
            mine = number + part
            is_last, counts = number + shares >= end, mine < end
            if counts:
                batch = loader[mine]
            elif batch is None:
                batch = loader[number]
            place = None if self._count is None else first + self._samples(number, mine)
            then_idle = not is_last and mine + shares >= end
            yield ShardBatch(batch, counts, None, None, is_last, place if counts else None, then_idle and counts)
            if self._count is not None:
                first += self._samples(number, min(number + shares, end))

    def _samples(self, start: int, end: int) -> int:
        return 0 if self._count is None else sum(self._count(batch)[0] for batch in self._loader[start:end])
