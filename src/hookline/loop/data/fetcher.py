"""``Fetcher``: waits for the next batch of a loader, and handles errors of the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookline.errors import LeaveWait, StopTraining
from hookline.loop.data.batches import END, LEFT, reason_of
from hookline.loop.data.loaders import LOADERS
from hookline.loop.world.leaving import stop_in_data
from hookline.loop.world.world import World
from hookline.run import RunState


class Fetcher:
    """Fetch batches. A signal or Ctrl-C ends a wait for data at once, in one process.

    Args:
        state: The state of the run.
        world: The processes of the run.
    """

    def __init__(self, state: RunState, world: World) -> None:
        self._state, self._requests, self._world = state, state.requests, world
        self.failed: BaseException | None = None
        """The error of the training loader, which it raised between two steps."""

    def open(self) -> None:
        """Reset the error when a run is opened."""
        self.failed = None

    def fetch(self, iterator: Iterator[Any], *, leave: bool = True, whole: bool = False) -> Any:
        """Return the next batch, ``END`` or ``LEFT``.

        Args:
            iterator: The batches.
            leave: True if a signal may end the wait.
            whole: True if only Ctrl-C may end the wait, because the evaluation must be completed.
        """
        self._requests.wait(leave=leave, whole=whole)
        try:
            try:
                return next(iterator, END)
            finally:
                self._requests.wait(leave=False)
        except BaseException as error:  # Also of a signal that comes just before the wait is over.
            return self.after_failure(error, waited=leave)

    def after_failure(self, error: BaseException, *, waited: bool = True) -> Any:
        """Return ``LEFT`` if a signal, Ctrl-C or ``StopTraining`` has ended the wait. Raise any other error."""
        state, requests = self._state, self._requests
        requests.wait(leave=False)
        if isinstance(error, LeaveWait):
            return LEFT
        stop = requests.agreed.stop
        if isinstance(error, KeyboardInterrupt) and stop is not None and stop.interrupt and state.in_fit:
            requests.set_leave_evaluation(state.stage != "train")
            return LEFT
        if isinstance(error, StopTraining):
            by, reason = f"the {LOADERS[state.stage]} loader", reason_of(error)
            refused = stop_in_data(by, reason, state.clock.step)
            refused.__cause__ = error
            self._world.refuse(refused)
            if state.in_fit and waited and state.stage != "predict":  # A prediction must be complete.
                state.stop_at_once(reason, by)
                return LEFT
        if isinstance(error, Exception):
            error.add_note(f"while fetching a batch, at {state.where()}")
            self.failed = error if state.stage == "train" else None
        state.clear_batch()
        raise error
