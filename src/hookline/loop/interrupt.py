"""Ctrl-C: the first finishes the step and returns a result, the second raises at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class CtrlC:
    """Listens for SIGINT while a run is open, in the main thread, unless the program has its own handler."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._pressed = False
        self._installed = False

    def listen(self) -> None:
        self._pressed = False
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True

    def restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
        self._first()
