"""Worker processes of loaders, which ignore signals to the run and end with the run."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Timer
from typing import Any
from weakref import ref

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import signal_handling

from hookline.loop.data.fetch import Fetching

IGNORED = (signal.SIGTERM, signal.SIGINT)
GRACE = 5.0
"""Seconds that all workers together have to end. Torch gives as many to each worker."""


class WorkerStart:
    """A ``worker_init_fn`` that lets a worker ignore signals and calls the user's function.

    A terminal or a cluster sends a signal to all processes of a group, but only the main process handles it. A worker
    that the signal kills would make torch raise in the main process, for example in a backward.

    Args:
        users: The user's ``worker_init_fn``.
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self.users = users

    def __call__(self, worker: int) -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Fetching):
            # User code must find its own data set in the worker info, whose class is frozen.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.users is not None:
            self.users(worker)


@contextmanager
def signals_held(loader: DataLoader[Any]) -> Iterator[None]:
    """Block signals in workers that a loader starts inside the block, until they ignore signals."""
    context = loader.multiprocessing_context or multiprocessing
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()  # Its start would unblock the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ignoring_workers(loader: Any) -> Iterator[None]:
    """Let workers ignore signals that a loader of any class starts inside the block."""
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        yield
        return
    users = loader.worker_init_fn
    loader.worker_init_fn = WorkerStart(users)
    try:
        with signals_held(loader):
            yield
    finally:
        loader.worker_init_fn = users


class Workers:
    """The worker processes of one iterator. They end at the latest when Python exits.

    At exit, ``multiprocessing`` sends SIGTERM and waits for the workers. It would wait for ever, because they ignore
    the signal.
    """

    def __init__(self) -> None:
        self._iterator: Any = None
        self._process = 0

    def watch(self, iterator: Any) -> None:
        """Manage the workers of this iterator, and end those of another iterator before it."""
        if iterator is self._iterator:
            return
        self.end()
        if getattr(iterator, "_workers", None):
            self._iterator, self._process = iterator, os.getpid()
            atexit.register(self.end)

    @property
    def alive(self) -> bool:
        """True if there are workers, and all of them are alive."""
        return self._iterator is not None and all(worker.is_alive() for worker in self._iterator._workers)

    def end(self) -> None:
        """End the workers as torch does. After ``GRACE`` seconds, kill those that have not ended."""
        iterator, self._iterator = self._iterator, None
        if iterator is None or self._process != os.getpid():  # In a fork, the workers belong to its parent.
            return
        atexit.unregister(self.end)
        workers = iterator._workers
        if iterator._worker_pids_set:
            # From here on, the end of a worker is not an error.
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        timer = Timer(GRACE, _kill, (workers,))
        timer.daemon = True
        timer.start()
        try:
            iterator._shutdown_workers()
            for worker in workers:
                worker.join()
        finally:
            timer.cancel()


def end_at_exit(iterator: Any) -> None:
    """End persistent workers when Python exits. Until then the user's loader owns them."""
    if getattr(iterator, "_workers", None) and not hasattr(iterator, "_ends_at_exit"):
        iterator._ends_at_exit = True  # The next evaluation uses the same iterator.
        for worker in iterator._workers:
            # When an iterator is garbage collected, torch terminates its workers with SIGTERM, which they ignore.
            worker._popen.terminate = worker._popen.kill
        atexit.register(_end_staying, ref(iterator), os.getpid())


def _end_staying(iterator: ref[Any], process: int) -> None:
    if process == os.getpid():
        workers = Workers()
        workers.watch(iterator())
        workers.end()


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        worker.kill()
