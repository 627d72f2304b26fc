"""``Links``: a connection between every two of a few processes on one machine, for votes.

Gloo answers from its own threads. With as many ranks as cores, each of these threads takes a core from a rank that
computes, and a vote costs 2 % of a step of 55 ms. Links have no threads: a message waits in the receiver's socket until
the receiver reads it. Their cost is too small to measure.
"""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from hookline.errors import RankError

logger = logging.getLogger("hookline")

FEW: Final = 8
"""Largest number of ranks with links.

Each rank sends to all others. For more ranks a ring is better, and they usually need several machines.
"""
TO_CONNECT: Final = 3.0
"""Seconds to connect to all ranks. The system accepts connections also for a busy process."""
TO_SPEAK: Final = 0.5
"""Seconds that a caller has to send the token. A rank sends it at once."""
LONGEST: Final = 2_000_000.0
"""Longest time-out of a socket in seconds. Above 2**32 ms a socket hardly waits at all."""
_QUIET: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""With this flag, a send to a lost process raises an error. A signal could end this process."""
_HELLO: Final = struct.Struct("<16sI")
"""The token of the called rank, and the rank of the caller.

The token is necessary because another program may find the port.
"""
_HEAD: Final = struct.Struct("<QI")
"""The number of the message, from 1, and the count of values that follow."""
_FILES: Final = {socket.create_connection.__code__.co_filename, (lambda: None).__code__.co_filename}
"""Files in which a socket raises an error: Python's ``socket.py`` and this file."""


class LinkLostError(RuntimeError):
    """Another process is gone or does not answer. ``Group`` finds out why.

    The base class is the class that torch's collectives raise.
    """


class Links:
    """Sums of values over all ranks. All ranks get the same sums, in the same order.

    Args:
        rank: The rank of this process.
        others: A connection to each other rank, by rank.
    """

    def __init__(self, rank: int, others: dict[int, socket.socket]) -> None:
        self._rank, self._others = rank, others
        self._said = 0
        # Messages by rank and number that were read before ``receive`` asked for them.
        self._heard: dict[int, dict[int, array[float]]] = {other: {} for other in others}

    def send(self, values: Sequence[float]) -> int:
        """Send values to all other ranks. All ranks must call it.

        Returns:
            The number of the message, for ``receive``.
        """
        self._said += 1
        data = _HEAD.pack(self._said, len(values)) + array("d", values).tobytes()
        try:
            for other in self._others.values():
                other.sendall(data, _QUIET)
        except OSError as error:
            _raise_lost(error)
        return self._said

    def receive(self, number: int, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks of the values of one message. All ranks must call it.

        Args:
            number: The number of the message. The ranks may have sent other messages since.
            values: The values that this rank has sent.

        Raises:
            LinkLostError: If another rank is gone or does not answer.
            RankError: If another rank has sent a different message.
        """
        rows = {self._rank: array("d", values)}
        for rank in self._others:
            row = rows[rank] = self._said_by(rank, number)
            if len(row) != len(values):
                raise _elsewhere(f"{number} of {len(values)} numbers", rank, f"{number} of {len(row)}")
        # Added in the order of the ranks, so that all ranks get bitwise equal sums.
        return [sum(numbers) for numbers in zip(*(rows[rank] for rank in sorted(rows)), strict=True)]

    def _said_by(self, rank: int, number: int) -> array[float]:
        other, heard = self._others[rank], self._heard[rank]
        while number not in heard:
            found, count = _HEAD.unpack(_read(other, _HEAD.size))
            if found > number:
                raise _elsewhere(str(number), rank, str(found))
            heard[found] = array("d", _read(other, 8 * count))
        return heard.pop(number)

    def cut(self) -> None:
        """Shut down the connections from any thread, so that neither side waits any longer."""
        for other in self._others.values():
            with suppress(OSError):  # The other side has shut it down.
                other.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        _close_all(self._others)


def connect(
    rank: int, size: int, timeout: timedelta, exchange: Callable[[Any], list[Any]], *, few: int = FEW
) -> Links | None:
    """Connect every two ranks. All ranks must call it.

    Args:
        rank: The rank of this process.
        size: The number of ranks.
        timeout: Limit for a later wait for another rank.
        exchange: Collective that returns a value of each rank, by rank.
        few: Largest number of ranks to connect.

    Returns:
        The links; on all ranks ``None`` if there are more ranks, or if not all of them are on one machine.
    """
    if size > few:
        return None
    others: dict[int, socket.socket] = {}
    with ExitStack() as unless_all_agree:
        unless_all_agree.callback(_close_all, others)
        if not all(exchange(_call_others(rank, size, timeout, exchange, others))):
            return None
        unless_all_agree.pop_all()
    return Links(rank, dict(sorted(others.items())))


def _call_others(
    rank: int,
    size: int,
    timeout: timedelta,
    exchange: Callable[[Any], list[Any]],
    others: dict[int, socket.socket],
) -> bool:
    """Fill ``others`` with connections. True if all ranks are reached. All ranks must call it."""
    word, door = secrets.token_bytes(16), _door()
    try:
        said = exchange([_this_machine(), door and door.getsockname()[1], word.hex()])
        if door is None or not all(port and machine == said[0][0] for machine, port, _ in said):
            return False
        until = time.monotonic() + TO_CONNECT
        for other, (_, port, its_word) in enumerate(said[:rank]):
            others[other] = _call(port, bytes.fromhex(its_word), rank, until)
        while len(others) < size - 1:
            caller, its = _answer(door, word, until)
            others[caller] = its
        for its in others.values():
            its.settimeout(min(timeout.total_seconds(), LONGEST))
            its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        if not _is_of_socket(error):
            raise
        logger.warning("votes go over gloo: rank %d has no connection to each of the others (%s)", rank, error)
        return False
    finally:
        if door is not None:
            door.close()
    return True


def _close_all(others: dict[int, socket.socket]) -> None:
    for other in others.values():
        other.close()


def _door() -> socket.socket | None:
    """Return a listening socket, or ``None`` if there is no loopback address.

    An error would end this rank alone.
    """
    try:
        return socket.create_server(("127.0.0.1", 0))
    except OSError:
        return None


def _call(port: int, word: bytes, rank: int, until: float) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), _left(until))
    try:
        found.sendall(_HELLO.pack(word, rank), _QUIET)
    except BaseException:
        found.close()
        raise
    return found


def _answer(door: socket.socket, word: bytes, until: float) -> tuple[int, socket.socket]:
    """Return the next caller that knows the token, and its connection.

    Raises:
        TimeoutError: After the time ``until``, however many other programs connect.
    """
    while True:
        door.settimeout(_left(until))
        found, _ = door.accept()
        try:
            told, caller = _HELLO.unpack(_read(found, _HELLO.size, until=min(until, time.monotonic() + TO_SPEAK)))
            if secrets.compare_digest(told, word):
                return caller, found
        except LinkLostError:  # The caller is silent, or gone.
            pass
        except BaseException:
            found.close()
            raise
        found.close()


def _left(until: float) -> float:
    """Return the seconds until a time. Raise ``TimeoutError`` after that time."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"not all have come in {TO_CONNECT:g} s")
    return left


def _this_machine() -> list[str]:
    """Return values that two processes share only if 127.0.0.1 connects them."""
    found = [socket.gethostname()]
    with suppress(OSError):  # Not every system has these files.
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        found.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return found


def _read(other: socket.socket, size: int, *, until: float | None = None) -> bytes:
    data = b""
    while len(data) < size:
        try:
            if until is not None:  # The limit is for all bytes together, because a caller may send them slowly.
                other.settimeout(_left(until))
            part = other.recv(size - len(data))
        except OSError as error:
            _raise_lost(error)
        if not part:
            raise LinkLostError("Connection closed by peer")
        data += part
    return data


def _raise_lost(error: OSError) -> NoReturn:
    """Raise ``LinkLostError`` for an error of a socket. Raise an error of user code as it is."""
    if not _is_of_socket(error):
        raise error
    raise LinkLostError(f"{type(error).__name__}: {error}") from error


def _is_of_socket(error: BaseException) -> bool:
    """True if a socket raised the error.

    While a socket waits, a signal handler of the user may raise an error of the same class.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return all(frame.f_code.co_filename in _FILES for frame, _ in frames)


def _elsewhere(own: str, rank: int, its: str) -> RankError:
    return RankError(f"this rank holds vote {own}, and rank {rank} vote {its}: the ranks are not at the same place")
