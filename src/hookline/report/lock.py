"""Whether a run's process is still there: as long as it is, it holds the lock on the run's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "run.lock"


def is_free(folder: Path) -> bool:
    """Whether nobody holds the lock. ``False`` also where that cannot be told: no file, no right to it, no locks here.

    A lock that is held is left alone. One that is free is shared for a moment: ask only about runs that say they run.
    """
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError:  # held, or a file system without locks
        return False
    finally:
        os.close(file)
    return True
