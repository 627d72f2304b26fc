"""Signals: handlers that only set a flag, which the loop reads at every step, batch and wait for data."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from hookline.errors import LeaveWait, Preempted
from hookline.run import Requests

logger = logging.getLogger("hookline")

PREEMPTING = (signal.SIGTERM,)
"""What asks a run to leave, besides Ctrl-C; ``StopOnSignal`` adds to it."""
SAME = 3.0
"""Seconds: in several processes a signal that comes again so soon is the same one. A terminal or a scheduler signals
torchrun and its workers, and torchrun hands on to the workers what it gets."""


class Signals:
    """Listens while a run is open, in the main thread; earlier handlers are called too, and put back after it.

    The first signal sets a flag, and leaves a wait for data at once. The second raises at once: ``Preempted``
    after SIGTERM, ``KeyboardInterrupt`` after Ctrl-C. The third ends the process. In several processes the flag is
    this rank's vote, and no rank leaves a wait alone.
    """

    def __init__(self, requests: Requests, interrupt: Callable[[], None]) -> None:
        self._requests = requests
        self._interrupt = interrupt
        self._earlier: dict[int, Any] = {}
        self._seen: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._said = self._closed = False
        self.in_fit = False
        """Whether Ctrl-C is a vote to stop; elsewhere it raises at once."""

    def listen(self, *, in_fit: bool) -> None:
        self._seen.clear()
        self._first.clear()
        self._requests.forget_signal()
        self.in_fit = in_fit
        if threading.current_thread() is not threading.main_thread():
            if not self._said:
                self._said = True
                logger.info("not in the main thread: signals are not listened to, so Ctrl-C and SIGTERM do not save")
            return
        for number in (signal.SIGINT, *PREEMPTING):
            earlier = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(earlier, Signals) and earlier._closed:
                earlier.restore()
        self._closed = False
        # A program that handles Ctrl-C itself, or ignores it, is left alone.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._install(signal.SIGINT, self._on_interrupt)
        self.add(PREEMPTING)

    def add(self, numbers: Iterable[int]) -> None:
        """Listen to these, too, until the run is closed."""
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if number not in self._earlier and signal.getsignal(number) is not signal.SIG_IGN:
                    self._install(number, self._on_preempt)

    def restore(self) -> None:
        """Only the main thread can; a run that was closed in another one leaves it to the next run or signal."""
        self._closed = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
        self._earlier.clear()

    def _install(self, number: int, handler: Any) -> None:
        self._earlier[number] = signal.signal(number, handler)

    def _is_over(self, number: int) -> bool:
        """Whether the run is closed. Where that was in another thread, the handlers are put back now, and get it."""
        if self._closed and self._earlier:  # else they are back, and somebody has kept one of these
            self.restore()
            signal.raise_signal(number)
        return self._closed

    def _count(self, number: int) -> int:
        """How often a signal has come; in several processes, what has come twice at once has come once."""
        now, count = time.monotonic(), self._seen.get(number, 0)
        again = self._requests.voted and count == 1 and now - self._first[number] < SAME
        self._first.setdefault(number, now)
        self._seen[number] = count if again else count + 1
        return 0 if again else count + 1

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_over(number):
            return
        count = self._count(number)
        if not count:
            return
        requests = self._requests
        self._interrupt()
        if count > 1:
            requests.forbid_saving()
        if count > 1 or (requests.waiting and not requests.voted) or not self.in_fit:
            raise KeyboardInterrupt

    def _on_preempt(self, number: int, frame: FrameType | None) -> None:
        if self._is_over(number):
            return
        count = self._count(number)
        if not count:
            return
        requests = self._requests
        requests.ask_preempt(number)
        earlier = self._earlier.get(number)
        if count == 1 and callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)
        if count == 2:
            requests.forbid_saving()
            raise Preempted(number)
        if count > 2:
            os._exit(128 + number)
        if requests.waiting and not requests.whole and not requests.voted:  # alone no rank can leave a step
            raise LeaveWait
