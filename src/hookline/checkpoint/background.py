"""``BackgroundWriter``: a checkpoint is copied while training waits, and written while training goes on."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hookline.checkpoint.copies import Copies
from hookline.checkpoint.snapshot import Snapshot
from hookline.errors import HooklineWarning

T = TypeVar("T")


class _Flight(Generic[T]):
    """A save that is being written."""

    __slots__ = ("done", "ended", "pid", "step")

    def __init__(self, step: int, done: Callable[[T], None] | None) -> None:
        self.step = step
        self.done = done
        self.ended = threading.Event()
        self.pid = os.getpid()


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """How a save ended: one of the two is set, unless ``write`` returns nothing."""

    result: T | None = None
    error: BaseException | None = None


class BackgroundWriter(Generic[T]):
    """Writes snapshots in a thread, at most one at a time, and never loses an error.

    ``write`` is called in the thread, with a copy that nobody changes, and ``ended`` when that has ended.
    ``done`` and every error come back in
    the thread that calls ``submit``, ``poll``, ``wait`` or ``close``. The thread is not a daemon: a program that
    ends waits for the last save, also if nobody closes the writer. ``close`` it in a ``finally``.

    The copy lives in buffers that are kept from save to save. What ``write`` returns must not hold the tensors.

    >>> import torch
    >>> from hookline.checkpoint.snapshot import About
    >>> written = []
    >>> writer = BackgroundWriter(lambda snapshot: written.append(snapshot.weights["w"].tolist()))
    >>> weight = torch.ones(2)
    >>> writer.submit(Snapshot(About(1, 0, 1, 1, 0.0, "run"), {"w": weight}))
    >>> weight.zero_()  # training goes on
    tensor([0., 0.])
    >>> writer.close()
    >>> written
    [[1.0, 1.0]]
    """

    def __init__(self, write: Callable[[Snapshot], T], ended: Callable[[], None] = lambda: None) -> None:
        self._write = write
        self._ended = ended
        self._copies = Copies()
        self._flight: _Flight[T] | None = None
        self._outcome: _Outcome[T] | None = None

    def submit(self, snapshot: Snapshot, done: Callable[[T], None] | None = None) -> None:
        """Copy the snapshot and have the copy written. Everything may be changed when this returns.

        It waits for the save before, and if that one has failed, raises its error and writes nothing.
        ``done`` gets what ``write`` returns.
        """
        self.wait()
        copied = self._copies.of(snapshot)
        flight: _Flight[T] = _Flight(snapshot.about.step, done)
        thread = threading.Thread(target=self._run, args=(flight, copied), name="hookline-save", daemon=False)
        self._flight = flight
        try:
            thread.start()
        except RuntimeError:  # no more threads: nothing is in flight
            self._flight = None
            raise

    def poll(self) -> None:
        """Raise the error of a save that has failed, or call ``done`` of one that has ended; once for each."""
        if self._outcome is not None:
            self._settle()

    def wait(self) -> None:
        """Wait for the save in flight, then do as ``poll``. After an interrupt it can be called again."""
        if self._flight is None:
            return
        if self._flight.pid != os.getpid():  # a forked child has no such thread; the parent's goes on
            self._flight = self._outcome = None
            return
        # Not Thread.join(): after a KeyboardInterrupt in it, Python 3.11 takes the running thread for ended.
        while not self._flight.ended.wait(0.2):
            pass  # a signal that comes just before Python waits for a lock is seen only when it wakes up again
        self._settle()

    @property
    def in_flight(self) -> bool:
        """Whether a save is being written, in this process."""
        flight = self._flight
        return flight is not None and flight.pid == os.getpid() and not flight.ended.is_set()

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call a function when the save in flight has ended, in its thread; at once if it has."""
        self._ended = act
        if not self.in_flight:
            act()

    def close(self) -> None:
        """Wait for the save in flight and give the buffers back, also if the save has failed."""
        try:
            self.wait()
        finally:
            if self._flight is None:  # else the wait was interrupted, and the thread still reads them
                self._copies.clear()

    def _run(self, flight: _Flight[T], snapshot: Snapshot) -> None:
        try:
            self._outcome = _Outcome(result=self._write(snapshot))
        except BaseException as error:
            self._outcome = _Outcome(error=error)
        finally:
            flight.ended.set()
            self._ended()  # after the outcome is there: whoever looks now finds it

    def _settle(self) -> None:
        outcome, flight = self._outcome, self._flight
        self._outcome = self._flight = None
        if outcome is None or flight is None:
            return
        if outcome.error is not None:
            outcome.error.add_note(f"in the background save of step {flight.step}")
            raise outcome.error
        if flight.done is not None:
            flight.done(outcome.result)  # type: ignore[arg-type]  # without an error it is what write returned

    def __del__(self) -> None:
        outcome = getattr(self, "_outcome", None)
        if outcome is not None and outcome.error is not None:
            warnings.warn(
                f"a background save failed, and nobody asked for it: {type(outcome.error).__name__}: {outcome.error}; "
                f"call close() of its writer",
                HooklineWarning,
                stacklevel=1,
            )
