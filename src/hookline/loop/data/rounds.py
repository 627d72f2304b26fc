"""Feeds for one of several ranks: data that is read in order, or that the loader shards.

The length of such data is not known, and all ranks must end together. So each rank reads one round ahead, and a small
sum over all ranks shows whether there is another round. A rank without further data repeats its last batch as padding
until all ranks have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from hookline.errors import DataError
from hookline.loop.data.agreement import Circle, check_alike, count_of, digest
from hookline.loop.data.dealt import SharedFeed
from hookline.loop.data.feed import Feed
from hookline.loop.data.shard_batch import ShardBatch
from hookline.loop.data.stream import OneShotFeed, StatefulFeed
from hookline.loop.data.stripes import Share


class OwnShare(SharedFeed):
    """The feed of a loader with a ``DistributedSampler``. All ranks have equally many samples.

    Args:
        inner: The feed of this rank's data.
        circle: The group of all ranks.
        share: The shard of this rank.
    """

    def __init__(self, inner: Feed, circle: Circle, share: Share) -> None:
        super().__init__(circle, share)
        self._inner = inner
        self.length, self.stride, self.own = inner.length, 1, share.shares
        self.notes = (*inner.notes, _own_note("a DistributedSampler gives this rank its shard"))

    def iterate(self, epoch: int, start: int) -> Iterator[ShardBatch]:
        batches = self._inner.iterate(epoch, start)
        self.length = self._inner.length
        fix = "a DistributedSampler gives all ranks as many; give all of them the same data set and batch size"
        check_alike(self.circle, "the number of batches is", self.length, fix)
        end = int(min(self.length or 0, -(-self.limit // self.share.shares)))
        numbered = enumerate(islice(batches, max(0, end - start)), start + 1)
        return (ShardBatch(batch, is_last=number == end) for number, batch in numbered)

    def close(self) -> None:
        self._inner.close()


class Rounds(SharedFeed):
    """The feed of any other loader, read in rounds of one batch per rank.

    Args:
        inner: The feed that this rank reads.
        circle: The group of all ranks.
        share: The shard of this rank.
        own: True if the loader itself shards the data. False if each rank reads all data and keeps its batches.
        count: Counts the samples of a batch, in an evaluation.
        checks: True to compare the first batches of all ranks, which must be the same if each reads all data.
    """

    length = None

    def __init__(
        self,
        inner: Feed,
        circle: Circle,
        share: Share,
        *,
        own: bool,
        count: Callable[[Any], tuple[int, int | None]] | None = None,
        checks: bool = False,
    ) -> None:
        super().__init__(circle, share)
        self._inner, self._is_own, self._count, self._checks = inner, own, count, checks
        self.stride, self.own = (1, share.shares) if own else (share.shares, 1)
        self.notes = (*inner.notes, *([_own_note("the loader gives this rank its own share")] if own else []))
        self._ahead: list[Any] | None = None  # the round read ahead of an iterator, which cannot be read again
        self._state: dict[str, Any] | None = None  # the state of the inner feed before that round

    def iterate(self, epoch: int, start: int) -> Iterator[ShardBatch]:
        state, ahead = self._state, self._ahead if isinstance(self._inner, OneShotFeed) else None
        self._state = self._ahead = None
        if isinstance(self._inner, StatefulFeed) and start and state is not None and state["at"] == [epoch, start]:
            # The epoch was left early, and continues in the same process.
            self._inner.load_state_dict(state)
        return self._rounds(self._inner.iterate(epoch, start), ahead, start)

    def _rounds(self, batches: Iterator[Any], ahead: list[Any] | None, start: int) -> Iterator[ShardBatch]:
        shares, part = self.share
        limit = self.limit - start * self.own  # the number of batches that all ranks together may still read
        group = self._read(batches, limit) if ahead is None else ahead
        last, first, number = None, 0, 0
        more = self._goes_on(group)
        if more and self._checks:
            self._check(group)
        while more:
            self._state = deepcopy(self._inner.state_dict())
            following = self._read(batches, limit - (number + 1) * shares)
            self._ahead = following or None
            more = (number + 1) * shares < limit and self._goes_on(following)
            mine = 0 if self._is_own else part
            counts = mine < len(group) and number * shares + part < limit
            last = group[mine] if mine < len(group) else (group[0] if last is None and group else last)
            if last is None:
                raise DataError(
                    f"the loader gives rank {self.circle.rank} no batch at all while it gives some to others, so that "
                    f"it cannot take part in their steps: give each rank one batch or more"
                )
            then_idle = more and (mine >= len(following) or (number + 1) * shares + part >= limit)
            place = None if self._count is None else first + sum(self._count(b)[0] for b in group[:mine])
            yield ShardBatch(last, counts, None, None, not more, place if counts else None, then_idle and counts)
            first += 0 if self._count is None else sum(self._count(batch)[0] for batch in group)
            group, number = following, number + 1

    def _read(self, batches: Iterator[Any], limit: float) -> list[Any]:
        """Return the batches that this rank reads for a round: its own, or one for each shard."""
        most = 1 if self._is_own else self.share.shares
        return list(islice(batches, max(0, int(min(most, limit)))))

    def _goes_on(self, group: list[Any]) -> bool:
        """Return whether there is another round. All ranks must call it.

        If each rank reads all data, the ranks must not differ.
        """
        having = count_of(self.circle, bool(group))
        if not self._is_own and 0 < having < self.circle.size:
            raise DataError(
                f"the loader gives more batches on some ranks than on others (rank {self.circle.rank} has "
                f"{'one more' if group else 'no more'}), though each is to read all of the data: {_FIX}"
            )
        return having > 0

    def _check(self, group: list[Any]) -> None:
        self._checks = False
        check_alike(self.circle, "each rank is to read all of the data, and the first batches are", digest(group), _FIX)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the round that was read ahead."""
        return self._inner.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state)
        self._state = self._ahead = None

    def close(self) -> None:
        self._inner.close()


_FIX = (
    "if the loader gives each rank its own share, set sharded = True on it or on its data set; if it draws random "
    "numbers that cannot be seeded, and all ranks read the same samples, set sharded = False"
)


def _own_note(why: str) -> str:
    return (
        f"{why} of the data, so that a run can resume inside an epoch only with as many processes as before: leave "
        f"that to Hookline, which deals out the batches of a plain DataLoader"
    )
