"""The sockets between processes, so that they can be cut: who waits for an answer on one then wakes up with an error.

Torch itself has no way to do that with gloo: neither a group that is destroyed nor one that is aborted wakes the
others, and they wait for as long as the process lives, or until the time-out.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from torch.distributed import DistError

LOST: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "gloo/transport",
)
"""What gloo says when another process has ended, in an error of no class of its own."""
_OPEN_FILES: Final = "/proc/self/fd"
# Of the process, as its table of open files is: a worker is forked from any loader, which knows nothing of runs.
_own_sockets: dict[int, int] = {}
_store_ports: set[int] = set()


def open_sockets() -> dict[int, int]:
    """The sockets of this process: a number that tells each apart, by file descriptor. None where it cannot be seen."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            with suppress(OSError):  # the folder itself was open while it was read
                status = os.stat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[int(name)] = status.st_ino
    return found


def opened_since(before: Mapping[int, int]) -> dict[int, int]:
    """Those that were not there before."""
    return {number: which for number, which in open_sockets().items() if before.get(number) != which}


def cut(sockets: Mapping[int, int], *, spare: int | None) -> None:
    """End these connections on both sides; not those to the port ``spare``, which are the store's."""
    now = open_sockets()
    for number, which in sockets.items():
        if now.get(number) != which:  # closed since, and the number may be another file's now
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
            if spare not in (found.getpeername()[1], found.getsockname()[1]):  # one that only listens has no peer
                found.shutdown(socket.SHUT_RDWR)


def tells_of_lost_peer(error: BaseException) -> bool:
    """Whether this is what torch raises when another process has gone, or its connection; and nothing else."""
    text = str(error)
    return isinstance(error, DistError) or any(words in text for words in LOST)


def keep_from_workers(sockets: Mapping[int, int], store_port: int | None) -> None:
    """These sockets, and all that go to a store at this port, are not for the worker processes of a ``DataLoader``.

    They inherit them where they are forked. A rank that is killed is gone for the others only when the last process
    that holds its end of a connection has gone, and a worker may be busy for long.
    """
    _own_sockets.update(sockets)
    if store_port is not None:
        _store_ports.add(store_port)


def let_go_in_worker() -> None:
    """In a forked worker: hold no connection of the run. Those of the user's data set stay open."""
    if not _own_sockets:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, which in open_sockets().items():
        if _own_sockets.get(number) == which or _goes_to_store(number):
            os.dup2(nothing, number, inheritable=False)  # the number stays taken: torch may close it here yet
    os.close(nothing)


def _goes_to_store(number: int) -> bool:
    """On either side: who keeps the store gets a connection more whenever somebody asks for one."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
        if found.family in (socket.AF_INET, socket.AF_INET6):
            if found.getsockname()[1] in _store_ports:
                return True
            return found.getpeername()[1] in _store_ports
    return False


def port_of(store: Any) -> int | None:
    """The port of the store that is at the bottom, if it has one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
