"""How long a rank is at work itself, by what it does; the time in which it waits for the others is not in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

PARTS: Final = ("data", "forward", "update")
"""What is timed: the wait for a batch, the model and its loss, the optimizer and the hooks after it."""


class WorkTimer:
    """Adds up the time of each part; one is open at a time. To begin one closes the one before.

    ``mark`` gives a moment, and ``between`` the seconds from one to another, or nothing while they are not known.
    """

    def __init__(self, mark: Callable[[], Any], between: Callable[[Any, Any], float | None]) -> None:
        self._mark, self._between = mark, between
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._open: tuple[str, Any] | None = None
        self._unread: deque[tuple[str, Any, Any]] = deque()  # what a device has not come to yet

    def begin(self, part: str) -> None:
        now = self._mark()
        self._close(now)
        self._open = part, now

    def end(self) -> None:
        if self._open is not None:
            self._close(self._mark())

    def add(self, part: str, seconds: float) -> None:
        """What was timed in another way."""
        self._seconds[part] += seconds

    def drop(self) -> None:
        """Whatever is open does not count."""
        self._open = None

    def take(self) -> list[float]:
        """The seconds of each part since the last time."""
        self._read()
        taken = list(self._seconds.values())
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return taken

    def _close(self, now: Any) -> None:
        if self._open is not None:
            self._unread.append((*self._open, now))
            self._open = None
            self._read()

    def _read(self) -> None:
        while self._unread:
            part, began, ended = self._unread[0]
            seconds = self._between(began, ended)
            if seconds is None:
                return  # what comes later is not done either
            self._seconds[part] += seconds
            self._unread.popleft()


def timer_of(device: torch.device) -> WorkTimer:
    """On the device's own time line: what a program gives it is done later than it is given."""
    if device.type == "cpu":
        return WorkTimer(time.perf_counter, lambda began, ended: float(ended - began))

    def mark() -> torch.Event:
        event = torch.Event(device, enable_timing=True)
        event.record()
        return event

    return WorkTimer(mark, between_events)


def between_events(began: Any, ended: Any) -> float | None:
    """The seconds between two events of a device, once it has come to the second; without waiting for it."""
    return began.elapsed_time(ended) / 1e3 if ended.query() else None
