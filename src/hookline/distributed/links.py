"""A few processes on one machine, each two of them connected: what one has said lies with the other until it asks.

Gloo answers from threads of its own. Where ranks are as many as cores, each of its threads takes a core from a rank
that computes, and a vote costs 2 % of a step of 55 ms. Here nothing runs in between, and nothing can be measured.
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
"""Ranks. Each sends to all others, so of many a ring is better; and they have more than one machine."""
TO_CONNECT: Final = 3.0
"""Seconds for all of them; the system answers for a process that is busy."""
TO_SPEAK: Final = 0.5
"""Seconds that who knocks has to say the word, which a rank sends at once."""
LONGEST: Final = 2_000_000.0
"""Seconds that a socket can be told to wait: one that is told more than 2**32 ms waits hardly at all."""
_QUIET: Final = getattr(socket, "MSG_NOSIGNAL", 0)
"""An error and no signal, which may end the process, where the other side has gone."""
_HELLO: Final = struct.Struct("<16sI")
"""The word of the one who is called, and the rank of the one who calls: another program may have found the port."""
_HEAD: Final = struct.Struct("<QI")
"""The number of what is said, from 1 on, and how many numbers follow."""
_FILES: Final = {socket.create_connection.__code__.co_filename, (lambda: None).__code__.co_filename}
"""Where an error of a socket rises: Python's own file, and this one."""


class LinkLostError(RuntimeError):
    """Another process has gone, or does not answer; ``Group`` finds out why. Torch's own collectives raise its base."""


class Links:
    """The sums of some numbers over all ranks, which all get alike, in the same order."""

    def __init__(self, rank: int, others: dict[int, socket.socket]) -> None:
        self._rank, self._others = rank, others
        self._said = 0
        self._heard: dict[int, dict[int, array[float]]] = {other: {} for other in others}  # not asked for yet

    def send(self, values: Sequence[float]) -> int:
        """By all: what this rank has to say. The number under which it is asked for."""
        self._said += 1
        data = _HEAD.pack(self._said, len(values)) + array("d", values).tobytes()
        try:
            for other in self._others.values():
                other.sendall(data, _QUIET)
        except OSError as error:
            _raise_lost(error)
        return self._said

    def receive(self, number: int, values: Sequence[float]) -> list[float]:
        """By all: the sums of what was sent under this number; something else may have been sent since."""
        rows = {self._rank: array("d", values)}
        for rank in self._others:
            row = rows[rank] = self._said_by(rank, number)
            if len(row) != len(values):
                raise _elsewhere(f"{number} of {len(values)} numbers", rank, f"{number} of {len(row)}")
        # In the order of the ranks: the sums must be the same everywhere, to the last bit.
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
        """From any thread: whoever waits here or on the other side, for one another, waits no more."""
        for other in self._others.values():
            with suppress(OSError):  # it is cut already, from the other side
                other.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        _close_all(self._others)


def connect(
    rank: int, size: int, timeout: timedelta, exchange: Callable[[Any], list[Any]], *, few: int = FEW
) -> Links | None:
    """By all: connect each two. Nothing, on all ranks, where they are many or not all on one machine.

    ``exchange``: a plain value from each rank, for all of them; ``timeout``: how long one waits for another later.
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
    """By all: those that can be reached, by rank. Whether all can."""
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
    """Where others can knock; nothing, and no error on one rank alone, where there is no loopback address."""
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
    """The next one who knows the word; an error once it is too late, however many others knock."""
    while True:
        door.settimeout(_left(until))
        found, _ = door.accept()
        try:
            told, caller = _HELLO.unpack(_read(found, _HELLO.size, until=min(until, time.monotonic() + TO_SPEAK)))
            if secrets.compare_digest(told, word):
                return caller, found
        except LinkLostError:  # who knocks says nothing, or has gone
            pass
        except BaseException:
            found.close()
            raise
        found.close()


def _left(until: float) -> float:
    """Seconds."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"not all have come in {TO_CONNECT:g} s")
    return left


def _this_machine() -> list[str]:
    """What two processes have in common only if one can reach the other through 127.0.0.1."""
    found = [socket.gethostname()]
    with suppress(OSError):  # not on every system
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        found.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return found


def _read(other: socket.socket, size: int, *, until: float | None = None) -> bytes:
    data = b""
    while len(data) < size:
        try:
            if until is not None:  # for all of it: who sends a byte now and then may not take as long as it likes
                other.settimeout(_left(until))
            part = other.recv(size - len(data))
        except OSError as error:
            _raise_lost(error)
        if not part:
            raise LinkLostError("Connection closed by peer")
        data += part
    return data


def _raise_lost(error: OSError) -> NoReturn:
    """The error of a socket says that another process has gone; the user's own goes on as it is."""
    if not _is_of_socket(error):
        raise error
    raise LinkLostError(f"{type(error).__name__}: {error}") from error


def _is_of_socket(error: BaseException) -> bool:
    """Whether it rose here: while a socket waits, a signal handler of the user's may raise what a socket raises."""
    frames = traceback.walk_tb(error.__traceback__)
    return all(frame.f_code.co_filename in _FILES for frame, _ in frames)


def _elsewhere(own: str, rank: int, its: str) -> RankError:
    return RankError(f"this rank holds vote {own}, and rank {rank} vote {its}: the ranks are not at the same place")
