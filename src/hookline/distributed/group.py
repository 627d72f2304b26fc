"""The processes of a run: one group of them, in which all agree on what is small and rare.

What is large goes through the strategy (``ddp.py``, ``fsdp.py``). What is here goes through a group of its own on the
CPU, so that it neither waits for a device nor mixes with what the model sends.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hookline.distributed.connections import (
    cut,
    keep_from_children,
    never_destroy_groups,
    open_sockets,
    opened_since,
    port_of,
    tells_of_lost_peer,
)
from hookline.distributed.env import Place
from hookline.distributed.guard import refuse_if_guarded
from hookline.distributed.last_words import leave_last_words
from hookline.distributed.links import LinkLostError, Links, connect
from hookline.distributed.membership import (
    AFTER_WATCHDOG,
    check_whole,
    default_store,
    join,
    mark_broken,
    meet,
    own_sockets,
)
from hookline.errors import RankError, SetupError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, Work

logger = logging.getLogger("hookline")

T = TypeVar("T")
SHORT = 1024
"""Bytes: what fits is exchanged at once; the size of what does not has to be told first."""
_LENGTH = 8
BUNCH = 10_000_000
"""Numbers that are sent at once."""
PATIENCE = 0.5
"""Seconds. A rank that fails says so before its connections are cut, so there is little to wait for."""


class Group:
    """All processes of a run. Each method that says so is to be called by all of them, in the same order.

    ``RankError`` is raised where another process has failed, with what it has said about it.
    """

    def __init__(self, place: Place, device: torch.device, timeout: timedelta) -> None:
        """By all: join the others. A process group that is there already is used, and left alone."""
        self.rank, self.local_rank, self.size = place.rank, place.local_rank, place.world_size
        self.broken = False
        """Another process has failed, or this one has: nobody waits for an answer any more."""
        self.reason: str | None = None
        """What another process has failed with, once it is known here."""
        theirs = dist.is_initialized()
        if not theirs:
            join(place, device, timeout)
        self._base = default_store()
        check_whole(self._base, self.rank)
        # Several runs in one process: each has keys of its own.
        number = meet(self._base, self.rank, self.size, timeout)
        before, longer = open_sockets(), timeout + AFTER_WATCHDOG
        try:
            self._side: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=longer)
            # Not the one above, whose order is another: a rank may vote before or after it averages gradients.
            own = dist.new_group(backend="gloo", timeout=longer) if theirs and device.type == "cpu" else None
            self.for_gradients: dist.ProcessGroup | None = own
            """Where gradients of a model on the CPU are averaged; nothing stands for the default group.

            Who waits there wakes up when this rank fails, which it would not in a group of the user's.
            """
        except RuntimeError as error:
            raise SetupError(
                f"rank {self.rank} found no connection to the other {self.size - 1} processes of this run: "
                f"{str(error).splitlines()[0]}"
            ) from error
        self._sockets = own_sockets(self._base, self.rank) | opened_since(before)
        self.store: Store = dist.PrefixStore(f"hookline/{number}", self._base)  # type: ignore[attr-defined]
        self._links: Links | None = None
        self._links = connect(self.rank, self.size, longer, self.exchange)
        keep_from_children(self._sockets | opened_since(before), port_of(self._base))

    def close(self) -> None:
        """The run is over. What this process has joined it leaves at its own end."""
        opened, self._side, self.for_gradients = (self._side, self.for_gradients), None, None
        if self._links is not None:
            self._links.close()
        if self.broken:
            never_destroy_groups()
            return
        for group in opened:
            if group is None:
                continue
            with suppress(RuntimeError, ValueError):  # the others may be gone
                dist.destroy_process_group(group)

    # -- collectives, for all ranks alike --------------------------------------------------------

    def add_up(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """By all: begin to add up numbers over all ranks, and compute on; what is returned waits for the sums."""
        links = self._links
        if links is not None:
            refuse_if_guarded("a vote")  # torch does not see it
            number = self._call(lambda: links.send(values), LinkLostError)
            return lambda: self._call(lambda: links.receive(number, values), LinkLostError)
        vector = torch.tensor(values, dtype=torch.float64)
        work: Work = self._call(lambda: dist.all_reduce(vector, group=self._side, async_op=True))

        def end() -> list[float]:
            self._call(work.wait)
            found: list[float] = vector.tolist()
            return found

        return end

    def total(self, values: Tensor) -> Tensor:
        """By all: the sums over all ranks."""
        self._call(lambda: dist.all_reduce(values, group=self._side))
        return values

    def largest(self, values: Tensor) -> Tensor:
        """By all: the largest of each number over all ranks."""
        self._call(lambda: dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._side))
        return values

    def barrier(self) -> None:
        """By all: wait for all."""
        self.total(torch.zeros(1))

    def gather(self, data: bytes) -> list[bytes]:
        """By all: what each rank gives, by rank."""
        first = _padded(len(data).to_bytes(_LENGTH, "little") + data[: SHORT - _LENGTH], SHORT)
        found = self._all(first)
        sizes = [int.from_bytes(part[:_LENGTH], "little") for part in found]
        rest = max(sizes) - (SHORT - _LENGTH)
        parts = [part[_LENGTH:] for part in found]
        if rest > 0:
            later = self._all(_padded(data[SHORT - _LENGTH :], rest))
            parts = [one + two for one, two in zip(parts, later, strict=True)]
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def exchange(self, value: Any) -> list[Any]:
        """By all: a plain value (what JSON can hold) from each rank, by rank."""
        return [json.loads(part) for part in self.gather(json.dumps(value).encode())]

    def from_zero(self, value: T) -> T:
        """By all: rank zero's value, on every rank."""
        found: list[T] = self.exchange(value if self.rank == 0 else None)
        return found[0]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """By all: give every rank the numbers that rank zero has, in place, kind by kind."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for (device, _), same in ((kind, some) for kind, its in kinds.items() for some in _bunches(its)):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            data = flat.view(torch.uint8)  # gloo knows some kinds of numbers only
            side = self._side if device.type == "cpu" else None
            self._call(lambda data=data, side=side: dist.broadcast(data, 0, group=side))  # type: ignore[misc]
            if self.rank == 0:
                continue
            with torch.no_grad():
                for tensor, part in zip(same, torch.split(flat, [t.numel() for t in same]), strict=True):
                    tensor.copy_(part.reshape(tensor.shape))

    def with_side(self, act: Callable[[Any], T]) -> T:
        """By all: what needs torch's own group, such as ``torch.distributed.checkpoint``; it gets that of the CPU."""
        return self._call(lambda: act(self._side))

    def _all(self, data: Tensor) -> list[bytes]:
        found = [torch.empty_like(data) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, data, group=self._side))
        return [bytes(part.numpy()) for part in found]

    # -- failure ---------------------------------------------------------------------------------

    def fail(self, words: str) -> None:
        """By one: this rank ends with an error. The others learn of it from the store, and wake up if they wait."""
        if not self.broken:
            is_first = self.accuse(self.rank, words, self.store)
            self._part(said := f"rank {self.rank} {words}", is_cause=is_first)
            if is_first:  # before the tracebacks of all ranks, in which it is hard to find
                logger.error("%s", said)

    def accuse(self, rank: int, words: str, store: Store) -> bool:
        """Say what a rank has failed with. The first one is the cause; what comes later it has brought about.

        Whether this is the first.
        """
        told = json.dumps({"rank": rank, "words": words})
        try:
            return store.compare_set("failed", "", told).decode() == told
        except RuntimeError:  # whoever keeps the store is gone already
            return False

    def will_not_come(self, store: Store) -> None:
        """This rank ends without any more ado: nobody is to wait for it."""
        with suppress(RuntimeError):
            mark_broken(store.underlying_store, self.rank, lost=True)  # type: ignore[attr-defined]

    def failure(self, store: Store | None = None) -> str | None:
        """What another rank has said before it ended with an error. A thread has a ``store`` of its own."""
        if self.reason is not None:
            return self.reason
        store = store or self.store
        try:
            found = store.get("failed") if store.check(["failed"]) else None
        except RuntimeError:
            return "the store that all ranks have in common is gone: the process that keeps it has ended"
        said = json.loads(found) if found else {"rank": self.rank}
        if said["rank"] != self.rank:
            self.reason = f"rank {said['rank']} {said['words']}"
        return self.reason

    def explain(self, error: BaseException) -> RankError:
        """What a collective that failed is to be called: another rank has ended, and may just have said why.

        An error that has nothing to do with the others, such as one of torch's about a tensor, is raised as it is.
        """
        gone = isinstance(error, LinkLostError) or tells_of_lost_peer(error)
        until = time.monotonic() + (PATIENCE if gone else 0.0)
        while (said := self.failure()) is None and time.monotonic() < until:
            time.sleep(0.05)
        lost = said is None
        if said is None:
            if not gone:
                raise error
            text = str(error).splitlines()[0].partition(". This is typically")[0]  # gloo says more than it knows
            said = f"another rank has ended without a word, or cannot be reached ({text})"
            self.accuse(self.rank, f"has lost touch: {said}", self.store)
        found = self._error(said)
        found.__cause__ = error if lost else None  # the other's error is the cause, and not that this rank was woken
        self._part(str(found), lost=lost)
        return found

    def check(self) -> None:
        """By one that waits for others in a way of its own: an error where one of them has failed."""
        if (said := self.failure()) is not None:
            error = self._error(said)
            self._part(str(error))
            raise error

    def wake(self) -> None:
        """From another thread: where this rank waits for the others, it waits no more."""
        cut(self._sockets, spare=port_of(self._base))
        if self._links is not None:
            self._links.cut()

    def _part(self, words: str, *, lost: bool = False, is_cause: bool = False) -> None:
        """Cut the connections: the others must not wait for this rank, which will not answer. ``words``: why."""
        self.broken = True
        with suppress(RuntimeError):
            mark_broken(self._base, self.rank, lost=lost)
        self.wake()
        leave_last_words(words, is_cause=is_cause)

    def _error(self, said: str) -> RankError:
        return RankError(f"rank {self.rank} ends, because {said}")

    def _call(self, act: Callable[[], T], lost: type[RuntimeError] = RuntimeError) -> T:
        """``lost``: what is raised where another process has gone."""
        if self.broken:
            raise self._error(self.reason or "an error came before, and nothing is agreed on after one")
        try:
            return act()
        except RankError:  # from the guard of a hook that runs on some ranks only
            raise
        except lost as error:
            raise self.explain(error)  # noqa: B904 (it has its cause)


def _bunches(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Not all at once: they are copied into one."""
    found: list[Tensor] = []
    for tensor in tensors:
        found.append(tensor)
        if sum(t.numel() for t in found) >= BUNCH:
            yield found
            found = []
    if found:
        yield found


def _padded(data: bytes, size: int) -> Tensor:
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
