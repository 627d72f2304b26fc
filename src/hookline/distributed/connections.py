"""The sockets between processes, and how to cut them.

If a connection is cut, a process that waits on it wakes up with an error. Torch has no way to do that with gloo:
neither destroying nor aborting a group wakes the other processes. They wait until the process ends or the time-out
passes.
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
"""Messages of gloo when another process has ended.

Gloo has no error class for them, and other code may raise errors with the same messages.
"""
GLOO: Final = "gloo/transport"
"""A part of the messages of gloo's errors, wherever they are raised."""
_OPEN_FILES: Final = "/proc/self/fd"
_ADDRESS: Final = 128
"""Size of the largest socket address in bytes."""
# These are global, like the open files of the process, because code that forks knows nothing of runs.
_own_sockets: dict[int, int] = {}
_store_ports: set[int] = set()
_is_listening_to_forks = False


def open_sockets() -> dict[int, int]:
    """Return the inode of each open socket of this process, by file descriptor.

    The inode shows whether a descriptor still belongs to the same socket. The result is empty on a system without
    ``/proc``.
    """
    found: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            with suppress(OSError):  # The list contains the descriptor of the folder, which is closed by now.
                status = os.stat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[int(name)] = status.st_ino
    return found


def opened_since(before: Mapping[int, int]) -> dict[int, int]:
    """Return the sockets that are open now and were not open ``before``."""
    return {number: which for number, which in open_sockets().items() if before.get(number) != which}


def cut(sockets: Mapping[int, int], *, spare: int | None) -> None:
    """Shut down connections, so that neither side waits any longer.

    Args:
        sockets: Inodes by file descriptor, as ``open_sockets`` returns them.
        spare: Port of the store. Connections from and to this port stay open.
    """
    now = open_sockets()
    for number, which in sockets.items():
        if now.get(number) != which:  # The descriptor may belong to another file now.
            continue
        own, peer = _ports_of(number)
        if peer is not None and spare not in (own, peer):  # A listening socket has no peer.
            _system().shutdown(number, socket.SHUT_RDWR)


def tells_of_lost_peer(error: BaseException) -> bool:
    """True if torch raised the error because another process or its connection is gone."""
    text = str(error)
    if isinstance(error, DistError) or GLOO in text:
        return True
    return any(words in text for words in LOST) and rose_in_collective(error)


def keep_from_children(sockets: Mapping[int, int], store_port: int | None) -> None:
    """Release sockets in all processes that are forked from this one.

    Forked processes, such as the workers of a ``DataLoader``, inherit all sockets. If a rank is killed, the other ranks
    notice it only after every process that holds its end of a connection has ended, and a child may run for long.

    Args:
        sockets: Inodes by file descriptor, as ``open_sockets`` returns them.
        store_port: Port of the store. A forked process also releases all connections from and to this port.
    """
    global _is_listening_to_forks
    _own_sockets.update(sockets)
    if store_port is not None:
        _store_ports.add(store_port)
    _system()  # Loaded now: a child of a process with several threads must not load a library.
    if not _is_listening_to_forks:
        os.register_at_fork(after_in_child=_let_go)
        _is_listening_to_forks = True


def _let_go() -> None:
    """Release the connections of the run in a forked child. The user's connections stay open."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, which in open_sockets().items():
        if _own_sockets.get(number) == which or not _store_ports.isdisjoint(_ports_of(number)):
            # The descriptor stays in use, because torch may still close it in the child.
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    # The destructor of a gloo group would wait for threads that the child does not have. It would also remove
    # connections from a list of the kernel (epoll) that the child shares with the parent, and the parent would abort.
    never_destroy_groups()


def never_destroy_groups() -> None:
    """Keep the process groups of this process alive until it ends.

    The destructor of a gloo group waits for its threads. After ``cut``, a thread may wait for a send that gloo has lost
    track of, and the process would never end.
    """
    for held in distributed_c10d._world.pg_map.items():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _ports_of(number: int) -> tuple[int | None, int | None]:
    """Return the local and the remote port of a socket; ``None`` for a side without a port.

    This function does not use Python's ``socket``. A ``socket`` for an existing descriptor applies
    ``socket.setdefaulttimeout`` to the connection itself. Torch uses the same connection, and would no longer wait on
    it.
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
    """Return the C library."""
    return ctypes.CDLL(None)


def port_of(store: Any) -> int | None:
    """Return the port of the innermost store, or ``None`` if it has no port."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
