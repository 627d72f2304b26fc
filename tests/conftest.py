"""What one test leaves in the process must not reach the next one."""

from __future__ import annotations

import signal
import threading

import pytest

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    """A library that a test has used may have left a handler, and ours call what they find."""
    if threading.current_thread() is threading.main_thread():
        for number, usual in USUAL.items():
            if signal.getsignal(number) is not usual and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, usual)
