"""``Target``: one plan at work. It writes checkpoints to its store, and deletes what no rule keeps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hookline.checkpoint import Checkpoint, Snapshot, Store
from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.retention import Keep, to_delete
from hookline.errors import CheckpointError
from hookline.loop.verification import AtSteps
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
        self.writer = BackgroundWriter(self.write, ended=wake) if plan.background else None

    def is_due(self, clock: Clock) -> bool:
        return self.asked or (self.schedule is not None and self.schedule.due(clock))

    def write(self, snapshot: Snapshot) -> Checkpoint:
        """Write it, then delete what no rule keeps."""
        checkpoint = self.store.save(snapshot, self.plan.name_of(snapshot.about))
        if self.plan.keep is not None:
            self._prune(checkpoint, self.plan.keep)
        return checkpoint

    def _prune(self, newest: Checkpoint, keep: Keep) -> None:
        there = self.store.checkpoints()
        gone = [checkpoint for checkpoint in to_delete(there, keep) if checkpoint.path != newest.path]
        if gone and len(there) - len(gone) == 1:
            self.store.verify(newest)  # it is about to be the only one
        for checkpoint in gone:
            try:
                self.store.delete(checkpoint)
            except CheckpointError as error:  # the new one is safe, so this stops nobody
                logger.warning("%s", error)
