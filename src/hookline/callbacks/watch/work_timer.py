"""``WorkTimer``: time that a rank works itself, without waiting for other ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

PARTS: Final = ("data", "forward", "update")
"""Timed parts: waiting for a batch; forward pass and loss; optimizer step and later hooks."""


class WorkTimer:
    """Sum of the seconds of each part.

    At most one part is open: starting a part ends the previous one.

    Args:
        mark: Function that returns a time stamp.
        between: Function that returns the seconds between two time stamps, or ``None`` if not known yet.
    """

    def __init__(self, mark: Callable[[], Any], between: Callable[[Any, Any], float | None]) -> None:
        self._mark, self._between = mark, between
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._open: tuple[str, Any] | None = None
        self._unread: deque[tuple[str, Any, Any]] = deque()  # Times that the device has not reached yet.

    def begin(self, part: str) -> None:
        """Start a part, and end the previous one."""
        now = self._mark()
        self._close(now)
        self._open = part, now

    def end(self) -> None:
        """End the current part."""
        if self._open is not None:
            self._close(self._mark())

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured in another way."""
        self._seconds[part] += seconds

    def drop(self) -> None:
        """Discard the current part."""
        self._open = None

    def take(self) -> list[float]:
        """Return the seconds of each part since the last call."""
        self._read()
        taken = list(self._seconds.values())
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return taken

    def _close(self, now: Any) -> None:
        """End the current part at this time stamp."""
        if self._open is not None:
            self._unread.append((*self._open, now))
            self._open = None
            self._read()

    def _read(self) -> None:
        """Add the times that the device has reached."""
        while self._unread:
            part, began, ended = self._unread[0]
            seconds = self._between(began, ended)
            if seconds is None:
                return  # Later events have not been reached either.
            self._seconds[part] += seconds
            self._unread.popleft()


def timer_of(device: torch.device) -> WorkTimer:
    """Return a timer on the timeline of the device, which runs asynchronously to the program."""
    if device.type == "cpu":
        return WorkTimer(time.perf_counter, lambda began, ended: float(ended - began))

    def mark() -> torch.Event:
        event = torch.Event(device, enable_timing=True)
        event.record()
        return event

    return WorkTimer(mark, between_events)


def between_events(began: Any, ended: Any) -> float | None:
    """Return the seconds between two events without waiting.

    ``None`` if the device has not reached the second event.
    """
    return began.elapsed_time(ended) / 1e3 if ended.query() else None
