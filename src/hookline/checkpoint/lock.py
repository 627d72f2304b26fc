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
    """A lock on a run's folder, held until ``close`` or the end of the process, however it ends.

    The file ``run.lock`` stays: to delete it would let two hold locks on two files of the same name.

    A worker process that was forked while the lock is held does not hold it: the kernel would keep the lock for
    as long as any copy of the descriptor is open, so the copy in the child is closed right after the fork.
    Programs that are started (exec) do not get the descriptor at all.

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
        """Whether this object holds the lock, in this process."""
        return self._file is not None

    def acquire(self) -> Self:
        """Take the lock. If another has it, in this process or any other, that is a ``CheckpointLockedError``."""
        if self._file is not None:
            raise CheckpointLockedError(f"{self.path.parent} is locked by this very lock already; take it once")
        # Before the file is open, so that no fork can come between. It cannot be taken back, hence the weak reference.
        this: weakref.ref[FolderLock] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(this))
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
        """Give the lock back; once is enough, twice does no harm."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            # Closing alone would not do: a process that is being started may have a copy open for a moment yet.
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
                f"{self.path.parent} is in use by {_holder(file)}; wait for it to end, stop it, or use another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise CheckpointWriteError(str(self.path), error, needed=0, free=None) from error
            warnings.warn(
                f"{self.path.parent} is on a file system without locks ({error.strerror}): "
                f"see to it yourself that no second run uses it",
                HooklineWarning,
                stacklevel=4,
            )
            return
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(who).encode(), 0)
        except OSError:
            return  # the disk is full: the lock is held all the same, only without saying by whom

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def _take(file: int) -> None:
    """Whoever asks whether a run is alive (``report/lock.py``) shares its lock for a moment, which is waited out."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _forget(reference: weakref.ref[FolderLock]) -> None:
    """In a child: close the copy of the descriptor. Not unlock: that would take the parent's lock away."""
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
        return "another process, which has not said which"
