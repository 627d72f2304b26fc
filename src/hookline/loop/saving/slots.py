"""``Target``: one plan at work. It writes checkpoints to its store, and deletes what no rule keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline.checkpoint import Checkpoint, Snapshot, Store
from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.retention import to_delete
from hookline.errors import CheckpointError
from hookline.loop.saving.verification import AtSteps
from hookline.progress import Clock, Schedule

logger = logging.getLogger("hookline")


class Target:
    """One plan at work: its store, its schedule, its thread."""

    def __init__(self, plan: SavePlan, folder: Path, schedule: Schedule | AtSteps | None, wake: Any) -> None:
        self.plan = plan
        self.store = Store(folder / plan.folder)
        self.schedule = schedule
        self.asked = False
        self.deferred = False
        """It was due at the last step, and is saved when the run is closed, as finished."""
        self.saved: tuple[int, int] | None = None
        """The step and batch of the last one that was saved."""
        self.background = plan.background
        self.writer = BackgroundWriter(self.write_alone, ended=wake) if plan.background else None

    def is_due(self, clock: Clock) -> bool:
        return self.asked or (self.schedule is not None and self.schedule.due(clock))

    def sweep(self) -> None:
        """Remove what a killed process left."""
        self.store.sweep()

    # -- saving --------------------------------------------------------------------------------

    def write(self, snapshot: Snapshot) -> Checkpoint:
        """Write it, then delete what no rule keeps."""
        return self.write_alone(snapshot)

    def write_alone(self, snapshot: Snapshot) -> Checkpoint:
        """The same, by this process."""
        checkpoint = self.store.save(snapshot, self.plan.name_of(snapshot.about))
        self.prune(checkpoint)
        return checkpoint

    def submit(self, snapshot: Snapshot, done: Callable[[Checkpoint], None]) -> None:
        """Have it written in the background; ``done`` is called by ``poll`` or ``wait`` when it is."""
        if self.writer is not None:
            self.writer.submit(snapshot, done)

    def poll(self) -> None:
        """Whether one that was written in the background has ended; its error is raised here."""
        if self.writer is not None:
            self.writer.poll()

    def wait(self) -> None:
        """Wait for what is being written."""
        if self.writer is not None:
            self.writer.wait()

    def close(self) -> None:
        """Wait for the last one, and give its memory free."""
        if self.writer is not None:
            self.writer.close()

    def newest(self) -> Path | None:
        latest = self.store.latest()
        return None if latest is None else latest.path

    def prune(self, newest: Checkpoint) -> None:
        """Delete what no rule keeps."""
        if self.plan.keep is None:
            return
        there = self.store.checkpoints()
        gone = [checkpoint for checkpoint in to_delete(there, self.plan.keep) if checkpoint.path != newest.path]
        if gone and len(there) - len(gone) == 1:
            self.store.verify(newest)  # it is about to be the only one
        self._delete(gone)

    def prune_finished(self) -> None:
        """The run is finished: with ``keep_last=0`` the newest one goes as well, unless another rule keeps it."""
        if self.plan.keep is None or self.plan.keep.last:
            return
        there = self.store.checkpoints()
        gone = to_delete(there, self.plan.keep, is_finished=True)
        for checkpoint in there if gone else ():
            if checkpoint not in gone:
                self.store.verify(checkpoint)
        self._delete(gone)

    def _delete(self, gone: list[Checkpoint]) -> None:
        for checkpoint in gone:
            try:
                self.store.delete(checkpoint)
            except CheckpointError as error:  # the new one is safe, so this stops nobody
                logger.warning("%s", error)
