"""How a process joins the process group, and how it leaves the group when it ends."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from hookline.distributed.connections import open_sockets, opened_since
from hookline.distributed.env import Place
from hookline.distributed.meeting import store_of_this_time, torchrun_keeps_store
from hookline.errors import SetupError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LAST_WAIT: Final = 10.0
"""Seconds that a process waits at its end for the end of the other processes."""
KEEPERS_WAIT: Final = 60.0
"""The same for the process that hosts the store: after its end, ranks cannot communicate."""
WAIT_AFTER_ERROR: Final = 5.0
AFTER_WATCHDOG: Final = timedelta(seconds=5)
"""How much longer than ``timeout`` a collective waits.

The watchdog, which names the rank that hangs, must report first. The value is small, because the ranks must notice an
unreachable node before torchrun gives up on it, after one minute.
"""
LOOKS_EVERY: Final = 0.02
LONGEST_PAUSE: Final = 0.1
"""Longest interval between two polls of the store in seconds.

With more than 100 ranks it is one second per 1000 ranks, because one process answers all ranks.
"""
_LEFT, _LOST, _BROKEN = "hookline/left", "hookline/lost", "hookline/broken"


def default_store() -> Store:
    """Return the store that all processes of the process group share."""
    return dist.distributed_c10d._get_default_store()


def backend_of(device: torch.device) -> str:
    """Return the backends for a device and for the CPU."""
    return "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def join(place: Place, device: torch.device, timeout: timedelta) -> None:
    """Create the process group, which this process leaves at its end. All ranks must call it.

    Raises:
        SetupError: If the process group cannot be created.
    """
    before, longer = open_sockets(), timeout + AFTER_WATCHDOG
    try:
        if torchrun_keeps_store():
            found = store_of_this_time(place, timeout)
            dist.init_process_group(
                backend_of(device), store=found, rank=place.rank, world_size=place.world_size, timeout=longer
            )
        else:
            dist.init_process_group(backend_of(device), timeout=longer)
    except (KeyError, ValueError, RuntimeError) as error:
        raise SetupError(
            f"rank {place.rank} could not join the {place.world_size} processes that the environment names "
            f"(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT): {str(error).splitlines()[0]}; start the script with "
            f"torchrun, or unset WORLD_SIZE for one process"
        ) from error
    store = default_store()
    # The store keeps them for later runs in the same process.
    store.set(_sockets_of(place.rank), json.dumps(list(opened_since(before).items())))
    atexit.register(partial(leave, store, place, os.getpid()))


def own_sockets(store: Store, rank: int) -> dict[int, int]:
    """Return the sockets of the process group if ``join`` has created it, or else none."""
    key = _sockets_of(rank)
    return dict(json.loads(store.get(key))) if store.check([key]) else {}


def check_whole(store: Store, rank: int) -> None:
    """Raise ``SetupError`` if an earlier run of this process has failed.

    The connections are cut after an error, so the processes cannot work together any more.
    """
    if store.check([f"{_BROKEN}/{rank}"]):
        raise SetupError(
            "an earlier run in this process has failed, and its connections to the other processes were cut: start "
            "the processes again; torchrun --max-restarts does it, and resume='auto' resumes from the last checkpoint"
        )


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> int:
    """Wait until all ranks have come to a run. All ranks must call it.

    Without this wait, torch would wait for a rank that has ended: until the time-out, and without naming the rank.

    Args:
        store: The store of the process group.
        rank: The rank of this process.
        size: The number of ranks.
        timeout: Limit for the wait.

    Returns:
        The number of the run in this process. It is the same on all ranks.

    Raises:
        SetupError: If a rank has ended, or does not come within ``timeout``.
    """
    until, pause = time.monotonic() + timeout.total_seconds(), 0.0005
    try:
        number = store.add(_runs_of(rank), 1)
        here = f"hookline/{number}/here"
        store.add(here, 1)
        while store.add(here, 0) < size:  # store.wait() would print two lines whenever it times out.
            if store.add(_LEFT, 0) and store.add(here, 0) < size:
                left = [other for other in range(size) if store.check([_left_of(other)])]
                raise _alone(rank, f"{_named(left)} ended, and will not come")
            if time.monotonic() > until:
                missing = [other for other in range(size) if store.add(_runs_of(other), 0) < number]
                raise _alone(rank, f"{_named(missing)} not come in {timeout.total_seconds():g} s")
            time.sleep(pause)
            pause = min(1.5 * pause, max(LONGEST_PAUSE, size / 1000))
    except RuntimeError as error:
        raise _alone(rank, f"the process that keeps the store has ended ({str(error).splitlines()[0]})") from error
    return number


def _alone(rank: int, why: str) -> SetupError:
    return SetupError(
        f"rank {rank} has come to a run for which it needs the others: {why}. Every rank must call fit, evaluate, test "
        f"and predict, and open its Loop: not under 'if rank == 0', where only what follows them belongs"
    )


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


def mark_broken(store: Store, rank: int, *, lost: bool) -> None:
    """Write to the store that the connections of this process are cut.

    Args:
        store: The store of the process group.
        rank: The rank of this process.
        lost: True if a process has ended without a reason. No rank then waits for it at the end.
    """
    store.set(f"{_BROKEN}/{rank}", "1")
    if lost:
        store.set(_LOST, "1")


def leave(store: Store, place: Place, process: int) -> None:
    """Wait for the other processes for a short time at the end, then leave the process group.

    A process that ends first closes connections that other ranks may still use, and rank zero may also close the store.
    If a process ends with an error, torchrun ends all others at once, even during their cleanup.

    Args:
        store: The store of the process group.
        place: The ranks of this process, and the number of processes.
        process: Id of the process that has joined. A forked child has another id.
    """
    if not dist.is_initialized() or os.getpid() != process:
        return
    with suppress(RuntimeError, ValueError):
        store.set(_left_of(place.rank), "1")
        store.add(_LEFT, 1)
        until = time.monotonic() + _patience(store, place.rank)
        while store.add(_LEFT, 0) < place.world_size - store.check([_LOST]) and time.monotonic() < until:
            time.sleep(LOOKS_EVERY)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # When the first process ends with an error, torchrun's SIGTERM would change the exit codes of the others.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(RuntimeError, ValueError):
        dist.destroy_process_group()


def _patience(store: Store, rank: int) -> float:
    keeps_store = rank == 0 and not torchrun_keeps_store()
    if store.check([_LOST]):
        return WAIT_AFTER_ERROR if keeps_store else 0.0  # The other ranks must still read the reason.
    if store.check([f"{_BROKEN}/{rank}"]):
        return WAIT_AFTER_ERROR
    return KEEPERS_WAIT if keeps_store else LAST_WAIT


def _runs_of(rank: int) -> str:
    return f"hookline/runs/{rank}"


def _left_of(rank: int) -> str:
    return f"{_LEFT}/{rank}"


def _sockets_of(rank: int) -> str:
    return f"hookline/sockets/{rank}"
