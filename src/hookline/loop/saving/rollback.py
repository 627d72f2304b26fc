"""Snapshots of a run in memory, to return to after a loss spike or a trial."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hookline.distributed.random_states import set_random_states
from hookline.events import Member
from hookline.loop.model.buffers import load_buffers, other_buffers
from hookline.loop.record.records import Records
from hookline.loop.saving.rows import rewind_rows
from hookline.loop.saving.saver import Saver
from hookline.loop.saving.tree import RunTree
from hookline.run import Run, RunState

MemorySnapshot = dict[str, Any]
"""Plain values and tensors, so that a callback can save the snapshot in a checkpoint."""


class MemorySnapshots:
    """Take snapshots of a run in memory, and return to them.

    Args:
        tree: The state of the run, as a tree.
        saver: The saver of the run. A rollback starts a new generation of checkpoints.
        state: The state of the run.
        records: The rows and the timeline of the run.
    """

    def __init__(self, tree: RunTree, saver: Saver, state: RunState, records: Records) -> None:
        self._tree, self._saver, self._state, self._records = tree, saver, state, records

    def take(self, by: Member[Run] | None = None) -> MemorySnapshot:
        """Return a copy of everything that the next step depends on.

        Args:
            by: The callback that asks for the snapshot. Its own state is left out.
        """
        state = self._tree.capture(in_memory=True)
        if by is not None:
            state["callbacks"].pop(by.key, None)
        weights, buffers = self._tree.weights(), other_buffers(self._state.module)
        return deepcopy({"weights": weights, "buffers": buffers, "state": state})

    def take_training(self) -> MemorySnapshot:
        """Return a copy of what training steps change if no hook runs: no state of a callback, no metric."""
        weights, buffers = self._tree.weights(), other_buffers(self._state.module)
        return deepcopy({"weights": weights, "buffers": buffers, "state": self._tree.capture_training(in_memory=True)})

    def restore(self, snapshot: MemorySnapshot, *, is_last: bool = False) -> None:
        """Restore the model, optimizers, schedulers, the gradient scaler and random states.

        Args:
            snapshot: The snapshot.
            is_last: True if the snapshot is not used again, so that Hookline need not copy it.
        """
        saved = snapshot["state"] if is_last else deepcopy(snapshot["state"])
        load_buffers(self._state.module, snapshot["buffers"], self._state.device)
        self._tree.restore_training(snapshot["weights"], saved)
        set_random_states(saved["random"])

    def roll_back(self, snapshot: MemorySnapshot, by: Member[Run]) -> None:
        """Undo the steps since a snapshot, at the end of a step. The data stays read.

        Args:
            snapshot: The snapshot. Hookline copies it, so that it can be restored again.
            by: The callback that asked for the rollback. It keeps its state.
        """
        saved, clock, line = deepcopy(snapshot["state"]), self._state.clock, self._state.line
        step = saved["clock"]["step"]
        lost = clock.step - step
        self._tree.callbacks.load(saved["callbacks"], structural=True, but=by)
        self.restore(snapshot)
        self._tree.go_back(saved, but=by)
        self._state.requests.drop_stop_after(step, by.key)
        self._saver.start_generation()
        rewind_rows(self._records, self._state, saved["history"]["bytes"], self._saver.run_id)
        self._records.note("rollback", f"by {by.name}: {lost} step{'' if lost == 1 else 's'} taken back")
        line.emit(line.hooks.rollback)
