"""Worker processes: they ignore the signals that are meant for the run, and they end when the run does."""

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
"""Seconds that all workers together have to end by themselves: what torch gives to each."""


class WorkerStart:
    """The first thing that a worker does, before the user's own ``worker_init_fn``.

    A signal to the whole group, as a terminal or a cluster sends it, is for the main process alone. A worker
    that died of it would make torch raise there, in the middle of a backward.
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self.users = users

    def __call__(self, worker: int) -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Fetching):
            # The user's code must see its own data set. The class of ``info`` is frozen.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.users is not None:
            self.users(worker)


@contextmanager
def signals_held(loader: DataLoader[Any]) -> Iterator[None]:
    """The workers that a loader starts here are born with the signals blocked, until they ignore them."""
    context = loader.multiprocessing_context or multiprocessing
    if context.get_start_method() != "fork":
        resource_tracker.ensure_running()  # it would unblock the signals when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ignoring_workers(loader: Any) -> Iterator[None]:
    """The workers that a loader of the user's own class starts here ignore the signals, too."""
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
    """The worker processes behind one iterator of torch, until they are ended; also where nobody ends them.

    At the exit of Python, ``multiprocessing`` sends SIGTERM and waits: for ever, because they ignore it.
    """

    def __init__(self) -> None:
        self._iterator: Any = None
        self._process = 0

    def watch(self, iterator: Any) -> None:
        """Take care of the workers of this iterator; of those before it, unless it is the same, no more."""
        if iterator is self._iterator:
            return
        self.end()
        if getattr(iterator, "_workers", None):
            self._iterator, self._process = iterator, os.getpid()
            atexit.register(self.end)

    @property
    def alive(self) -> bool:
        """Whether there are workers and all of them live."""
        return self._iterator is not None and all(worker.is_alive() for worker in self._iterator._workers)

    def end(self) -> None:
        """Torch's own orderly end first; SIGKILL for those that have not ended after ``GRACE`` seconds."""
        iterator, self._iterator = self._iterator, None
        if iterator is None or self._process != os.getpid():  # in a fork they are not its children
            return
        atexit.unregister(self.end)
        workers = iterator._workers
        if iterator._worker_pids_set:
            # That they end is no error from here on.
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
    """Take care of workers that stay (``persistent_workers``) only when Python ends: until then they are the user's."""
    if getattr(iterator, "_workers", None) and not hasattr(iterator, "_ends_at_exit"):
        iterator._ends_at_exit = True  # it is the same in the next evaluation
        for worker in iterator._workers:
            # Torch terminates those of an iterator that the garbage collector has found, because they no longer hear
            # its orderly end; but they ignore SIGTERM.
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
