"""The handlers of signals that an import of Composer installs."""

from __future__ import annotations

import signal
import threading


def restore_default_handlers() -> None:
    """Restore Python's handlers of Ctrl-C and SIGTERM, in place of those of Composer.

    An import of Composer installs handlers that end the process at once. Hookline, which keeps the handlers of a
    program, could not finish the step and save a checkpoint.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if getattr(signal.getsignal(number), "__module__", None) == "composer.core.engine":
            signal.signal(number, default)
