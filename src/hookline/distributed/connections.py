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

_OPEN_FILES: Final = "/proc/self/fd"


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


def port_of(store: Any) -> int | None:
    """The port of the store that is at the bottom, if it has one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
