"""The feeds of data that can only be read in order, or that each rank has a share of: all ranks end together.

Its length is not known, so one round is read ahead, and one small sum over all ranks says whether there is another. A
rank that has run out goes on with the last batch that it had, which does not count, until all have.
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
from hookline.loop.data.part import Part
from hookline.loop.data.stream import OneShotFeed, StatefulFeed
from hookline.loop.data.stripes import Share


class OwnShare(SharedFeed):
    """A loader with a ``DistributedSampler``, which gives every rank as many samples."""

    def __init__(self, inner: Feed, circle: Circle, share: Share) -> None:
        super().__init__(circle, share)
        self._inner = inner
        self.length, self.stride, self.own = inner.length, 1, share.shares
        self.notes = (*inner.notes, _own_note("a DistributedSampler gives this rank its share"))

    def iterate(self, epoch: int, start: int) -> Iterator[Part]:
        batches = self._inner.iterate(epoch, start)
        self.length = self._inner.length
        fix = "a DistributedSampler gives all ranks as many; give all of them the same data set and batch size"
        check_alike(self.circle, "the number of batches is", self.length, fix)
        end = int(min(self.length or 0, -(-self.limit // self.share.shares)))
        numbered = enumerate(islice(batches, max(0, end - start)), start + 1)
        return (Part(batch, is_last=number == end) for number, batch in numbered)

    def close(self) -> None:
        self._inner.close()


class Rounds(SharedFeed):
    """Any feed in rounds: of a whole stream each rank keeps its batch, of its own share all of them."""

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
        """``checks``: whether all ranks read the same is looked at once; nobody has said that they do."""
        super().__init__(circle, share)
        self._inner, self._is_own, self._count, self._checks = inner, own, count, checks
        self.stride, self.own = (1, share.shares) if own else (share.shares, 1)
        self.notes = (*inner.notes, *([_own_note("the loader gives this rank its own share")] if own else []))
        self._ahead: list[Any] | None = None  # read of an iterator, which cannot be read again
        self._state: dict[str, Any] | None = None  # before what is read ahead

    def iterate(self, epoch: int, start: int) -> Iterator[Part]:
        state, ahead = self._state, self._ahead if isinstance(self._inner, OneShotFeed) else None
        self._state = self._ahead = None
        if isinstance(self._inner, StatefulFeed) and start and state is not None and state["at"] == [epoch, start]:
            self._inner.load_state_dict(state)  # left early, and gone on with in this process
        return self._rounds(self._inner.iterate(epoch, start), ahead, start)

    def _rounds(self, batches: Iterator[Any], ahead: list[Any] | None, start: int) -> Iterator[Part]:
        shares, part = self.share
        limit = self.limit - start * self.own  # what all ranks together may still take
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
            yield Part(last, counts, None, None, not more, place if counts else None, then_idle and counts)
            first += 0 if self._count is None else sum(self._count(batch)[0] for batch in group)
            group, number = following, number + 1

    def _read(self, batches: Iterator[Any], limit: float) -> list[Any]:
        """What this rank reads for one round: its own batch, or one for every share."""
        most = 1 if self._is_own else self.share.shares
        return list(islice(batches, max(0, int(min(most, limit)))))

    def _goes_on(self, group: list[Any]) -> bool:
        """By all: whether there is another round; of one stream that all read, all must say the same."""
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
        """Before what is read ahead."""
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
        f"{why} of the data, so that a run can go on inside an epoch only with as many processes as before: leave that "
        f"to Hookline, which deals out the batches of a plain DataLoader"
    )
