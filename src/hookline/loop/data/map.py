"""The feed of a plain ``DataLoader`` over a map-style data set."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from hookline.loop.data.agreement import digest_of_indices
from hookline.loop.data.batches import set_epoch, sure_length
from hookline.loop.data.fetch import Fetching, Ticket, as_it_is
from hookline.loop.data.notes import map_notes
from hookline.loop.data.order import Order
from hookline.loop.data.seeding import mix
from hookline.loop.data.stripes import Piece, Stripes
from hookline.loop.data.workers import Workers, WorkerStart, signals_held


class Tickets:
    """The sampler of the rebuilt loader, which gives the number and the indices of each batch.

    Args:
        order: The order of the data.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.epoch = self.start = 0
        self.digests: deque[int] | None = None
        """A digest of the indices of each batch that was drawn, in order. ``None``: they are not wanted."""

    def record_digests(self) -> None:
        """Keep the digests from the next iteration on."""
        if self.digests is None:
            self.digests = deque()

    def begin(self, epoch: int, start: int) -> None:
        """Set the epoch and the first batch of the next iteration."""
        self.epoch, self.start = epoch, start
        if self.digests is not None:
            self.digests.clear()

    def _draw(self, indices: Any) -> Any:
        """Return the indices of a batch, and keep their digest."""
        if self.digests is not None:
            self.digests.append(digest_of_indices(indices))
        return indices

    def __iter__(self) -> Iterator[Ticket]:
        epoch, start = self.epoch, self.start
        for number, indices in enumerate(self._order.indices(epoch, start), start):
            yield epoch, number, self._draw(indices), 0

    def indices(self, epoch: int, number: int) -> list[int]:
        """Return the indices of one batch."""
        return list(next(self._order.indices(epoch, number)))


class DealtTickets(Tickets):
    """The sampler for one shard of the data.

    ``dealt`` holds the facts about each batch that was given, in order.

    Args:
        order: The order of the data.
        stripes: Selects the batches of the shard.
        shares: The number of shards.
    """

    def __init__(self, order: Order, stripes: Stripes, shares: int) -> None:
        super().__init__(order)
        self._stripes, self._shares = stripes, shares
        self._batches: Iterator[Any] = iter(())
        self.dealt: deque[Piece] = deque()
        self.limit = math.inf
        self.group: list[Any] = []
        """The first batch of each shard."""

    def set_limit(self, batches: float) -> None:
        """Set the largest number of batches that all ranks together take in an epoch."""
        self.limit = batches

    def begin(self, epoch: int, start: int) -> None:
        super().begin(epoch, start)
        batches = self._order.indices(epoch, start)
        self.group = list(islice(batches, self._shares))
        self._batches = chain(self.group, batches)
        self.dealt.clear()

    def __iter__(self) -> Iterator[Ticket]:
        for piece in self._stripes.deal(self._batches, self.start, self.limit):
            self.dealt.append(piece._replace(indices=None))
            yield self.epoch, piece.number, self._draw(piece.indices), piece.piece

    def indices(self, epoch: int, number: int) -> list[int]:
        return list(next(self._stripes.deal(self._order.indices(epoch, number), number, self.limit)).indices)


class MapFeed:
    """The feed of a loader that is rebuilt around the user's data set, sampler and functions.

    A batch depends on the seed, the epoch and its number. It does not depend on the batch at which the iteration
    starts, or on the number of workers.

    Args:
        loader: The user's loader.
        seed: The seed of the run.
        rank: The rank of this process.
        stripes: Selects the batches of a shard. ``None``: all batches.
        shares: The number of shards.
        tells: True to call ``set_epoch`` of the loader and its data set.

    Example:
        >>> loader = DataLoader(list(range(6)), batch_size=2, shuffle=True)
        >>> feed = MapFeed(loader, seed=0)
        >>> [batch.tolist() for batch in feed.iterate(3, 1)] == [batch.tolist() for batch in feed.iterate(3, 0)][1:]
        True
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        seed: int,
        rank: int = 0,
        stripes: Stripes | None = None,
        shares: int = 1,
        tells: bool = True,
    ) -> None:
        self._users, self._seed, self._tells = loader, seed, tells
        self._fetching = Fetching(loader, seed, rank, tells=tells)
        order = Order(loader, seed)
        self.tickets = Tickets(order) if stripes is None else DealtTickets(order, stripes, shares)
        # Torch draws the base seed of the workers from this generator. Without it, torch uses the global generator.
        self._generator = torch.Generator()
        self._workers = Workers()
        self._loader = self._rebuilt()
        self.length = sure_length(loader)
        self.notes = map_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch, from a batch on. Earlier iterators must not be used again."""
        if self._tells:
            set_epoch(self._users, epoch)
            self._fetching.tell_epoch(epoch)
        self.length = sure_length(self._users)
        self.tickets.begin(epoch, start)
        self._generator.manual_seed(mix(self._seed, epoch))
        if not self._loader.num_workers:
            return iter(self._loader)
        if self._loader.persistent_workers and self._workers.alive:
            return iter(self._loader)  # The persistent workers continue.
        self.close()
        with signals_held(self._loader):
            iterator = iter(self._loader)
        self._workers.watch(iterator)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the epoch and the number of the batch are the position."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
        self._loader._iterator = None

    def _rebuilt(self) -> DataLoader[Any]:
        users = self._users
        return DataLoader(
            self._fetching,
            batch_size=None,  # Each item of the sampler is a batch.
            sampler=self.tickets,
            collate_fn=as_it_is,
            num_workers=users.num_workers,
            pin_memory=users.pin_memory,
            timeout=users.timeout,
            worker_init_fn=WorkerStart(users.worker_init_fn),
            multiprocessing_context=users.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=users.prefetch_factor,
            persistent_workers=users.persistent_workers,
            pin_memory_device=users.pin_memory_device,
            in_order=users.in_order or isinstance(self.tickets, DealtTickets),
        )
