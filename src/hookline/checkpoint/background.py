"""``BackgroundWriter``: write a checkpoint in a thread while training continues."""

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
    """A save in progress."""

    __slots__ = ("done", "ended", "pid", "step")

    def __init__(self, step: int, done: Callable[[T], None] | None) -> None:
        self.step = step
        self.done = done
        self.ended = threading.Event()
        self.pid = os.getpid()


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """The result or the error of a save. Both are ``None`` if ``write`` returned ``None``."""

    result: T | None = None
    error: BaseException | None = None


class BackgroundWriter(Generic[T]):
    """Write snapshots in a thread, at most one at a time, and report every error.

    The writer copies each snapshot into buffers that it reuses for the next one. ``done`` callbacks and errors of
    ``write`` surface in the thread that calls ``submit``, ``poll``, ``wait`` or ``close``. The writer thread is not
    a daemon: a program that ends waits for the last save, even if nothing closes the writer. Call ``close`` in a
    ``finally``.

    Args:
        write: Function that writes a snapshot. The thread calls it with a copy that no other code changes. Its
            result must not hold the tensors.
        ended: Function that the thread calls when a save has ended.

    Example:
        >>> import torch
        >>> from hookline.checkpoint.snapshot import About
        >>> written = []
        >>> writer = BackgroundWriter(lambda snapshot: written.append(snapshot.weights["w"].tolist()))
        >>> weight = torch.ones(2)
        >>> writer.submit(Snapshot(About(1, 0, 1, 1, 0.0, "run"), {"w": weight}))
        >>> weight.zero_()  # training continues
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
        """Copy the snapshot and start to write the copy.

        The caller may change everything in the snapshot when this method returns. It first waits for the previous
        save. If that save failed, it raises the error and writes nothing.

        Args:
            snapshot: The snapshot to write.
            done: Function to call with the result of ``write``.
        """
        self.wait()
        copied = self._copies.of(snapshot)
        flight: _Flight[T] = _Flight(snapshot.about.step, done)
        thread = threading.Thread(target=self._run, args=(flight, copied), name="hookline-save", daemon=False)
        self._flight = flight
        try:
            thread.start()
        except RuntimeError:  # Python could not start a thread, so no save is in progress.
            self._flight = None
            raise

    def poll(self) -> None:
        """Raise the error of a failed save, or call ``done`` of a completed one; once per save."""
        if self._outcome is not None:
            self._settle()

    def wait(self) -> None:
        """Wait for the save in progress, then act as ``poll`` does.

        After an interrupt, it can be called again.
        """
        if self._flight is None:
            return
        if self._flight.pid != os.getpid():  # A forked child does not have the thread; the parent still does.
            self._flight = self._outcome = None
            return
        # Not Thread.join(): after a KeyboardInterrupt in join(), Python 3.11 considers the running thread ended.
        while not self._flight.ended.wait(0.2):
            pass  # Python handles a signal that arrives just before the wait only when the wait returns.
        self._settle()

    @property
    def in_flight(self) -> bool:
        """True if this process is writing a save."""
        flight = self._flight
        return flight is not None and flight.pid == os.getpid() and not flight.ended.is_set()

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call a function in the writer thread when the save in progress ends, or at once."""
        self._ended = act
        if not self.in_flight:
            act()

    def close(self) -> None:
        """Wait for the save in progress and release the buffers, even if the save failed."""
        try:
            self.wait()
        finally:
            if self._flight is None:  # Otherwise the wait was interrupted, and the thread still reads the buffers.
                self._copies.clear()

    def _run(self, flight: _Flight[T], snapshot: Snapshot) -> None:
        try:
            self._outcome = _Outcome(result=self._write(snapshot))
        except BaseException as error:
            self._outcome = _Outcome(error=error)
        finally:
            flight.ended.set()
            self._ended()  # Last, so that the function that it calls finds the outcome.

    def _settle(self) -> None:
        outcome, flight = self._outcome, self._flight
        self._outcome = self._flight = None
        if outcome is None or flight is None:
            return
        if outcome.error is not None:
            outcome.error.add_note(f"in the background save of step {flight.step}")
            raise outcome.error
        if flight.done is not None:
            flight.done(outcome.result)  # type: ignore[arg-type]  # Without an error, it is the result of write.

    def __del__(self) -> None:
        outcome = getattr(self, "_outcome", None)
        if outcome is not None and outcome.error is not None:
            warnings.warn(
                f"The background save of a checkpoint failed: {type(outcome.error).__name__}: {outcome.error}. "
                f"Call BackgroundWriter.close() to get the error.",
                HooklineWarning,
                stacklevel=1,
            )
