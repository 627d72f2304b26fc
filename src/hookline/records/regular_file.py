"""Reading of the files of a run, without waiting for pipes or devices with the same names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: If the file cannot be opened, or is a folder, a named pipe, a device or a socket.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer. Checking the open descriptor avoids a race.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(file)
        raise
    return os.fdopen(file, "rb")
