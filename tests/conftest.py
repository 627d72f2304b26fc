"""What one test leaves in the process must not reach the next one, and a busy machine is no reason to fail."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    """A library that a test has used may have left a handler, and ours call what they find.

    A shell script that starts the tests in the background has them ignore Ctrl-C.
    """
    if threading.current_thread() is threading.main_thread():
        for number, usual in USUAL.items():
            if signal.getsignal(number) is not usual:
                signal.signal(number, usual)


@pytest.fixture(autouse=True)
def usual_numbers() -> None:
    """pytest-randomly seeds Python and NumPy; what torch draws would depend on the tests before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def hold_port() -> Iterator[Callable[[], int]]:
    """A port of the loopback address at which nobody listens until a server of the test does.

    It stays bound: a port that was only looked up may be another's, or the end of any connection, a moment later.
    Servers may bind it too, because they reuse addresses.
    """
    with ExitStack() as held:

        def hold() -> int:
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
            return port

        yield hold
