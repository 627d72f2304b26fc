"""Check whether the process of a run is alive: it holds the lock on the run's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "run.lock"


def is_free(folder: Path) -> bool:
    """Return True if no process holds the lock.

    False if that is unknown: without a lock file, without permission, or without support for locks.

    A free lock is held in shared mode for an instant, so call this only for runs whose status is ``running``.
    """
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:  # The lock is held, or the file system does not support locks.
        return False
    finally:
        os.close(file)
    return True


def is_held(folder: Path) -> bool:
    """Return True if a process seems to hold the lock: there is a lock file, and it is not free.

    Args:
        folder: The run's folder.
    """
    return os.path.lexists(folder / LOCK) and not is_free(folder)
