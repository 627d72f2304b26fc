"""``FolderLock``: one run at a time writes into a folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import warnings
import weakref
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hookline.errors import CheckpointLockedError, CheckpointWriteError, HooklineWarning

NAME: Final = "run.lock"
LOOKS: Final = 4
_NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


class FolderLock:
    """A lock on a run's folder, held until ``close`` or the end of the process.

    The file ``run.lock`` is never deleted: otherwise two processes could lock two different files of this name.

    A forked worker process does not hold the lock. The kernel would keep the lock while any copy of the file descriptor
    is open, so the child closes its copy right after the fork. Programs started with ``exec`` do not inherit the
    descriptor.

    Args:
        folder: The run's folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, FolderLock(folder):  # doctest: +ELLIPSIS
        ...     FolderLock(folder).acquire()
        Traceback (most recent call last):
        hookline.errors.CheckpointLockedError: /... is in use by process ...
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).absolute() / NAME
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """True if this object holds the lock in this process."""
        return self._file is not None

    def acquire(self) -> Self:
        """Acquire the lock.

        Raises:
            CheckpointLockedError: If this process or another one holds the lock.
            CheckpointWriteError: If the lock file cannot be opened.
        """
        if self._file is not None:
            raise CheckpointLockedError(f"{self.path.parent} is already locked by this FolderLock. Acquire it once.")
        # Register before the file is open, so that no fork can happen in between. A registration cannot be removed,
        # hence the weak reference.
        this: weakref.ref[FolderLock] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close_copy(this))
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CheckpointWriteError(str(self.path), error, needed=0, free=None) from error
        self._file = file
        try:
            self._lock(file)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Release the lock. Does nothing if the lock is not held."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            # Closing is not enough: a process that is being started may still have a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        finally:
            os.close(file)

    def _lock(self, file: int) -> None:
        try:
            _take(file)
        except BlockingIOError:
            raise CheckpointLockedError(
                f"{self.path.parent} is in use by {_holder(file)}. Wait until it ends, stop it, or use another folder."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise CheckpointWriteError(str(self.path), error, needed=0, free=None) from error
            warnings.warn(
                f"{self.path.parent} is on a file system without locks ({error.strerror}). "
                f"Make sure that no other run uses the folder.",
                HooklineWarning,
                stacklevel=4,
            )
            return
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(who).encode(), 0)
        except OSError:
            return  # The disk is full. The lock is held, but without information about its holder.

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def _take(file: int) -> None:
    """Acquire the lock, with retries.

    ``report/lock.py`` holds a shared lock for an instant when it checks whether a run is alive.
    """
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _close_copy(reference: weakref.ref[FolderLock]) -> None:
    """Close the child's copy of the descriptor. Unlocking would release the parent's lock."""
    lock = reference()
    if lock is not None and lock._file is not None:
        file, lock._file = lock._file, None
        os.close(file)


def _holder(file: int) -> str:
    try:
        who = json.loads(os.pread(file, 1000, 0))
        since = datetime.fromisoformat(who["since"])
        return f"process {int(who['pid'])} on {str(who['host'])[:100]!r} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
