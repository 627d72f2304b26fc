"""The sockets between processes, so that they can be cut: who waits for an answer on one then wakes up with an error.

Torch itself has no way to do that with gloo: neither a group that is destroyed nor one that is aborted wakes the
others, and they wait for as long as the process lives, or until the time-out.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

from torch.distributed import DistError, distributed_c10d

from hookline.distributed.stacks import rose_in_collective

LOST: Final = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
"""What gloo says when another process has ended, in an error of no class of its own; others may say so, too."""
GLOO: Final = "gloo/transport"
"""Its mark in such an error, wherever that rises."""
_OPEN_FILES: Final = "/proc/self/fd"
_ADDRESS: Final = 128
"""Bytes of the largest address that a socket can have."""
# Of the process, as its table of open files is: who forks knows nothing of runs.
_own_sockets: dict[int, int] = {}
_store_ports: set[int] = set()
_is_listening_to_forks = False


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
        own, peer = _ports_of(number)
        if peer is not None and spare not in (own, peer):  # one that only listens has no peer
            _system().shutdown(number, socket.SHUT_RDWR)


def tells_of_lost_peer(error: BaseException) -> bool:
    """Whether this is what torch raises when another process has gone, or its connection; and nothing else."""
    text = str(error)
    if isinstance(error, DistError) or GLOO in text:
        return True
    return any(words in text for words in LOST) and rose_in_collective(error)


def keep_from_children(sockets: Mapping[int, int], store_port: int | None) -> None:
    """These sockets, and all that go to a store at this port, are not for processes that are forked from this one.

    They inherit them: workers of a ``DataLoader``, and what else the user starts. A rank that is killed is gone for the
    others only when the last process that holds its end of a connection has gone, and a child may be busy for long.
    """
    global _is_listening_to_forks
    _own_sockets.update(sockets)
    if store_port is not None:
        _store_ports.add(store_port)
    _system()  # loaded here: a child that was forked from several threads is to load nothing
    if not _is_listening_to_forks:
        os.register_at_fork(after_in_child=_let_go)
        _is_listening_to_forks = True


def _let_go() -> None:
    """In a forked child: hold no connection of the run. Those that the user has opened stay open."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, which in open_sockets().items():
        if _own_sockets.get(number) == which or not _store_ports.isdisjoint(_ports_of(number)):
            os.dup2(nothing, number, inheritable=False)  # the number stays taken: torch may close it here yet
    os.close(nothing)
    # Gloo would wait for threads that the child does not have, and take connections off a list of the system that the
    # parent shares, which then aborts.
    never_destroy_groups()


def never_destroy_groups() -> None:
    """Keep the process groups of this process until it has ended, whoever lets go of them.

    The destructor of a gloo group waits for its threads. After ``cut`` one of them may wait for a send that gloo has
    lost track of, and the process would never end.
    """
    for held in distributed_c10d._world.pg_map.items():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _ports_of(number: int) -> tuple[int | None, int | None]:
    """Of a socket's own side and of the other; nothing for one that has none, as it is no connection over IP.

    Python's own sockets are not used: one that is made of a descriptor sets what ``socket.setdefaulttimeout`` asks for
    on the connection itself, which others have, too. Torch then finds its own not to wait any more.
    """
    return _port(_system().getsockname, number), _port(_system().getpeername, number)


def _port(ask: Any, number: int) -> int | None:
    room, size = ctypes.create_string_buffer(_ADDRESS), ctypes.c_uint32(_ADDRESS)
    if ask(number, room, ctypes.byref(size)):
        return None
    family, port = *struct.unpack_from("=H", room), *struct.unpack_from("!H", room, 2)
    return port if family in (socket.AF_INET, socket.AF_INET6) else None


@cache
def _system() -> ctypes.CDLL:
    """The functions of the C library."""
    return ctypes.CDLL(None)


def port_of(store: Any) -> int | None:
    """The port of the store that is at the bottom, if it has one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
