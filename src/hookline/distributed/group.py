"""``Group``: the processes of a run, and collectives for values that are small or rare.

Gradients and sharded weights go through the strategy (``ddp.py``, ``fsdp.py``). The collectives here use a separate
group on the CPU, so that they neither wait for a device nor mix with the communication of the model.
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
"""Size of the first message of ``gather`` in bytes. Longer data needs a second message."""
_LENGTH = 8
BUNCH = 10_000_000
"""Elements that ``broadcast`` sends at once."""
PATIENCE = 0.5
"""Seconds to wait for the reason of a failure.

A rank that fails writes its reason before it cuts its connections, so a short time is enough.
"""


class Group:
    """All processes of a run, and their collectives.

    All ranks must call the collectives in the same order. If another rank has failed, a collective raises ``RankError``
    with the reason of that rank.

    Args:
        place: The ranks of this process, and the number of processes.
        device: The device of the model.
        timeout: Limit for each collective.

    Raises:
        SetupError: If this process cannot reach the other processes.
    """

    def __init__(self, place: Place, device: torch.device, timeout: timedelta) -> None:
        """Join the other processes. All ranks must call it.

        An existing process group is used, and Hookline does not leave it.
        """
        self.rank, self.local_rank, self.size = place.rank, place.local_rank, place.world_size
        self.broken = False
        """True if this process or another one has failed. No rank waits for an answer any more."""
        self.reason: str | None = None
        """The reason of the failure of another rank, as soon as this rank knows it."""
        theirs = dist.is_initialized()
        if not theirs:
            join(place, device, timeout)
        self._base = default_store()
        check_whole(self._base, self.rank)
        # A process can have several runs. Each run has its own keys in the store.
        number = meet(self._base, self.rank, self.size, timeout)
        before, longer = open_sockets(), timeout + AFTER_WATCHDOG
        try:
            self._side: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=longer)
            # A separate group for gradients: the order of votes and gradients may differ between ranks.
            own = dist.new_group(backend="gloo", timeout=longer) if theirs and device.type == "cpu" else None
            self.for_gradients: dist.ProcessGroup | None = own
            """The group for the gradients of a model on the CPU, or ``None`` for the default group.

            If this rank fails, ranks that wait in this group wake up. In the user's process group they would not.
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
        """Close the connections of this run.

        The process leaves the process group when it ends.
        """
        opened, self._side, self.for_gradients = (self._side, self.for_gradients), None, None
        if self._links is not None:
            self._links.close()
        if self.broken:
            never_destroy_groups()
            return
        for group in opened:
            if group is None:
                continue
            with suppress(RuntimeError, ValueError):  # The other ranks may have ended.
                dist.destroy_process_group(group)

    # -- collectives -----------------------------------------------------------------------------

    def add_up(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Start to sum values over all ranks. All ranks must call it.

        Returns:
            A function that waits for the sums and returns them.
        """
        links = self._links
        if links is not None:
            refuse_if_guarded("a vote")  # The guard sees only communication through torch.
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
        """Sum each value over all ranks, in place. All ranks must call it."""
        self._call(lambda: dist.all_reduce(values, group=self._side))
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Compute the maximum of each value over all ranks, in place. All ranks must call it."""
        self._call(lambda: dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._side))
        return values

    def barrier(self) -> None:
        """Wait for all ranks. All ranks must call it."""
        self.total(torch.zeros(1))

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of each rank, by rank. All ranks must call it."""
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
        """Return the value of each rank, by rank. All ranks must call it, with a value for JSON."""
        return [json.loads(part) for part in self.gather(json.dumps(value).encode())]

    def from_zero(self, value: T) -> T:
        """Return the value of rank zero on every rank. All ranks must call it."""
        found: list[T] = self.exchange(value if self.rank == 0 else None)
        return found[0]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of rank zero to all ranks, in place. All ranks must call it."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for (device, _), same in ((kind, some) for kind, its in kinds.items() for some in _bunches(its)):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            data = flat.view(torch.uint8)  # Gloo does not support every dtype.
            side = self._side if device.type == "cpu" else None
            self._call(lambda data=data, side=side: dist.broadcast(data, 0, group=side))  # type: ignore[misc]
            if self.rank == 0:
                continue
            with torch.no_grad():
                for tensor, part in zip(same, torch.split(flat, [t.numel() for t in same]), strict=True):
                    tensor.copy_(part.reshape(tensor.shape))

    def _all(self, data: Tensor) -> list[bytes]:
        found = [torch.empty_like(data) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, data, group=self._side))
        return [bytes(part.numpy()) for part in found]

    # -- failure ---------------------------------------------------------------------------------

    def fail(self, words: str) -> None:
        """Tell the other ranks that this rank ends with an error.

        The other ranks read the reason from the store, and wake up if they wait in a collective.
        """
        if not self.broken:
            is_first, said = self.accuse(self.rank, words, self.store), f"rank {self.rank} {words}"
            if is_first:  # Log it before the other ranks wake up and print their tracebacks.
                logger.error("%s", said)
            self._part(said, is_cause=is_first)

    def accuse(self, rank: int, words: str, store: Store) -> bool:
        """Write the reason of a rank's failure to the store, unless the store has one already.

        The first failure is the cause of the later ones.

        Args:
            rank: The rank that has failed.
            words: The reason. It continues a sentence that begins with "rank 1".
            store: The store of the calling thread.

        Returns:
            True if this failure is the first one.
        """
        told = json.dumps({"rank": rank, "words": words})
        try:
            return store.compare_set("failed", "", told).decode() == told
        except RuntimeError:  # The process that hosts the store has ended.
            return False

    def will_not_come(self, store: Store) -> None:
        """Tell the other ranks not to wait for this rank, because it ends at once."""
        with suppress(RuntimeError):
            mark_broken(store.underlying_store, self.rank, lost=True)  # type: ignore[attr-defined]

    def failure(self, store: Store | None = None) -> str | None:
        """Return the reason of the failure of another rank, or ``None``.

        Args:
            store: The store of the calling thread. The default is the store of the main thread.
        """
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
        """Return the error to raise if a collective has failed because another rank has ended.

        The reason of the other rank may arrive late, so this method waits for it for a short time. It raises ``error``
        itself if that has nothing to do with other ranks, for example an error of torch about a tensor.
        """
        gone = isinstance(error, LinkLostError) or tells_of_lost_peer(error)
        until = time.monotonic() + (PATIENCE if gone else 0.0)
        while (said := self.failure()) is None and time.monotonic() < until:
            time.sleep(0.05)
        lost = said is None
        if said is None:
            if not gone:
                raise error
            # The message of gloo continues with a guess about the cause.
            text = str(error).splitlines()[0].partition(". This is typically")[0]
            said = f"another rank has ended without an error, or cannot be reached ({text})"
            self.accuse(self.rank, f"has lost touch: {said}", self.store)
        found = self._error(said)
        # If the reason of the other rank is known, the lost connection is not the cause.
        found.__cause__ = error if lost else None
        self._part(str(found), lost=lost)
        return found

    def check(self, *, also_own: bool = False) -> None:
        """Raise ``RankError`` if another rank has failed.

        Args:
            also_own: Also raise it if another rank has written a failure of this rank to the store.
        """
        accused = also_own and self.store.check(["failed"])  # first: who is accused in between is in ``failure``
        if (said := self.failure()) is not None:
            error = self._error(said)
        elif accused:
            error = RankError(f"rank {self.rank} {json.loads(self.store.get('failed'))['words']}")
        else:
            return
        self._part(str(error))
        raise error

    def wake(self) -> None:
        """Cut the connections of this rank from any thread, so that it does not wait any longer."""
        cut(self._sockets, spare=port_of(self._base))
        if self._links is not None:
            self._links.cut()

    def _part(self, words: str, *, lost: bool = False, is_cause: bool = False) -> None:
        """Cut the connections: this rank will not answer, so the other ranks must not wait for it."""
        self.broken = True
        with suppress(RuntimeError):
            mark_broken(self._base, self.rank, lost=lost)
        self.wake()
        leave_last_words(words, is_cause=is_cause)

    def _error(self, said: str) -> RankError:
        return RankError(f"rank {self.rank} ends, because {said}")

    def _call(self, act: Callable[[], T], lost: type[RuntimeError] = RuntimeError) -> T:
        """Call ``act``. If it raises ``lost``, another process may be gone: raise the explanation."""
        if self.broken:
            raise self._error(self.reason or "an error came before, and nothing is agreed on after one")
        try:
            return act()
        except RankError:  # The guard of a hook has raised it.
            raise
        except lost as error:
            raise self.explain(error)  # noqa: B904 (explain sets the cause)


def _bunches(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in bunches, because ``broadcast`` copies each bunch into one tensor."""
    found: list[Tensor] = []
    count = 0
    for tensor in tensors:
        found.append(tensor)
        count += tensor.numel()
        if count >= BUNCH:
            yield found
            found, count = [], 0
    if found:
        yield found


def _padded(data: bytes, size: int) -> Tensor:
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
