"""A new store after each restart by torchrun.

torchrun keeps one store through all restarts. That store still has torch's keys of the earlier processes, and a
restarted process may read the address of a dead one (pytorch/pytorch#135712). The number of restarts does not separate
the keys, because each machine counts its own restarts. So rank zero chooses a random prefix for all keys. Every other
rank asks for the prefix with its own random key.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import torch.distributed as dist

from hookline.distributed.env import Place

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOKS_EVERY: Final = 0.02
_HELLO, _WELCOME = "hookline/hello", "hookline/welcome"


def torchrun_keeps_store() -> bool:
    """True if torchrun hosts the store, False if rank zero does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_of_this_time(place: Place, timeout: timedelta) -> Store:
    """Return a new, empty store inside torchrun's store. All ranks must call it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    whole: Store = dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)  # type: ignore[attr-defined]
    name = _welcome(whole, place.world_size, timeout) if place.rank == 0 else _hello(whole, place.rank, timeout)
    return dist.PrefixStore(f"hookline/{name}", whole)  # type: ignore[attr-defined]


def _hello(store: Store, rank: int, timeout: timedelta) -> str:
    mine = uuid4().hex
    store.set(f"{_HELLO}/{rank}", mine)
    store.wait([f"{_WELCOME}/{mine}"], timeout)
    name = store.get(f"{_WELCOME}/{mine}").decode()
    store.add(f"hookline/{name}/here", 1)
    return name


def _welcome(store: Store, size: int, timeout: timedelta) -> str:
    """Answer requests until all ranks have the prefix, and return the prefix.

    The first request of a rank may come from an earlier process, so rank zero also answers later ones.
    """
    name, answered = uuid4().hex, dict[int, bytes]()
    until = time.monotonic() + timeout.total_seconds()
    while store.add(f"hookline/{name}/here", 0) < size - 1:
        for rank in range(1, size):
            asked = store.get(f"{_HELLO}/{rank}") if store.check([f"{_HELLO}/{rank}"]) else None
            if asked is not None and answered.get(rank) != asked:
                answered[rank] = asked
                store.set(f"{_WELCOME}/{asked.decode()}", name)
        if time.monotonic() > until:
            raise RuntimeError(
                f"not all came in {timeout.total_seconds():g} s; of {size - 1} others {len(answered)} have"
            )
        time.sleep(LOOKS_EVERY)
    return name
