"""``Signals``: handlers that set a flag, which the loop reads at each step, batch and wait."""

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
"""Signals that end a run, in addition to Ctrl-C. ``StopOnSignal`` adds others."""
SAME = 3.0
"""Seconds. With several processes, a signal that comes again within this time counts once.

A terminal or a scheduler sends the signal to torchrun and to its workers, and torchrun forwards it to the workers.
"""


class Signals:
    """The signal handlers of an open run, in the main thread.

    - The first signal sets a flag, and ends a wait for data at once.
    - The second signal raises at once: ``Preempted`` after SIGTERM, ``KeyboardInterrupt`` after Ctrl-C.
    - The third SIGTERM ends the process.

    With several processes, the flag is the vote of this rank, and no rank leaves a wait alone. The first signal also
    calls the handler that was installed before. ``restore`` installs that handler again.

    Args:
        requests: The requests of the run.
        interrupt: Function that asks to stop after Ctrl-C.
    """

    def __init__(self, requests: Requests, interrupt: Callable[[], None]) -> None:
        self._requests = requests
        self._interrupt = interrupt
        self._earlier: dict[int, Any] = {}
        self._seen: dict[int, int] = {}
        self._first: dict[int, float] = {}
        self._said = self._closed = False
        self._stops_on_interrupt = False  # The first Ctrl-C is a request to stop. Otherwise it raises at once.

    def listen(self, *, stops_on_interrupt: bool) -> None:
        """Install the handlers when a run is opened.

        Args:
            stops_on_interrupt: True if the first Ctrl-C is a request to stop. Otherwise it raises at once.
        """
        self._seen.clear()
        self._first.clear()
        self._requests.forget_signal()
        self._stops_on_interrupt = stops_on_interrupt
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
        # A program that handles Ctrl-C itself, or ignores it, keeps its own handler.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._install(signal.SIGINT, self._on_interrupt)
        self.add(PREEMPTING)

    def add(self, numbers: Iterable[int]) -> None:
        """Handle these signals like SIGTERM, until the run is closed."""
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if number not in self._earlier and signal.getsignal(number) is not signal.SIG_IGN:
                    self._install(number, self._on_preempt)

    def restore(self) -> None:
        """Install the earlier handlers again.

        Only the main thread can do this. If the run is closed in another thread, the next run or signal does it.
        """
        self._closed = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # `None`: Python did not set it.
        self._earlier.clear()

    def _install(self, number: int, handler: Any) -> None:
        self._earlier[number] = signal.signal(number, handler)

    def _is_over(self, number: int) -> bool:
        """Return whether the run is closed.

        If it was closed in another thread, install the earlier handlers now and raise the signal again for them.
        """
        if self._closed and self._earlier:  # Otherwise they are installed, and other code has kept this handler.
            self.restore()
            signal.raise_signal(number)
        return self._closed

    def _count(self, number: int) -> int:
        """Count a signal. Return how often it has come, or 0 for a repetition that counts once."""
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
        if count > 1 or (requests.waiting and not requests.voted) or not self._stops_on_interrupt:
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
        if requests.waiting and not requests.whole and not requests.voted:  # No rank can leave a step alone.
            raise LeaveWait
