"""``Slot``: writes the checkpoints of one save plan, and deletes those that no rule keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from hookline.checkpoint import Checkpoint, Manifest, Snapshot, Store
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.retention import to_delete
from hookline.checkpoint.together import is_shared, save_together
from hookline.errors import CheckpointError
from hookline.loop.saving.replay import ReplayEnd
from hookline.loop.saving.verification import AtSteps
from hookline.loop.world.ranks import Ranks
from hookline.progress import Clock, Schedule

logger = logging.getLogger("hookline")

SaveSchedule = Schedule | AtSteps | ReplayEnd


class Slot:
    """The store, the schedule, the background thread and the requests of one save plan.

    Args:
        plan: The plan of a callback.
        folder: The folder of the run.
        schedule: When a checkpoint is due, if the plan has an interval.
        wake: Function that the background thread calls when a checkpoint is written.
    """

    def __init__(self, plan: SavePlan, folder: Path, schedule: SaveSchedule | None, wake: Callable[[], None]) -> None:
        self.plan = plan
        self.store = Store(folder / plan.folder)
        self.asked = False
        """True if a callback has requested a save at the end of this step."""
        self.deferred = False
        """True if a save was due at the last step. The slot then saves when the run is closed."""
        self.background = plan.background
        """True if a thread writes the checkpoints."""
        self._schedule = schedule
        self._saved: tuple[int, int] | None = None  # The step and the batch of the last save.
        self._writer = BackgroundWriter(self.write_alone, ended=wake) if plan.background else None

    def sweep(self) -> None:
        """Remove the remains of a killed process from the store."""
        self.store.sweep()

    # -- when --------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for a save at the end of this step."""
        self.asked = True

    def is_due(self, clock: Clock) -> bool:
        """True if a save is due by the schedule, or requested."""
        return self.asked or (self._schedule is not None and self._schedule.due(clock))

    def take_due(self, clock: Clock, *, is_last: bool) -> bool:
        """Take the save that is due. Return False if the slot defers it to the end of the run.

        Args:
            clock: The clock of the run.
            is_last: True if training is over after this step.
        """
        if self._schedule is not None:
            self._schedule.fired(clock)
        self.asked = False
        self.deferred = is_last and self.plan.at_end
        return not self.deferred

    def take_final(self, *, asked: bool) -> bool:
        """Take the save at the end of the run. Return False if the slot saves nothing there.

        Args:
            asked: True if all slots are asked to save.
        """
        if not (self.plan.at_end or self.asked or asked):
            return False
        self.asked = self.deferred = False
        return True

    def mark_saved(self, clock: Clock) -> None:
        """Record that a snapshot was taken at the current step."""
        self._saved = (clock.step, clock.batch)

    def mark_failed(self) -> None:
        """Record that the last snapshot could not be written."""
        self._saved = None

    def is_saved(self, clock: Clock) -> bool:
        """True if the current step is saved."""
        return self._saved == (clock.step, clock.batch)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, snapshot: Snapshot) -> Checkpoint:
        """Write a snapshot, then delete the checkpoints that no rule keeps.

        All ranks must call it.
        """
        return self.write_alone(snapshot)

    def write_alone(self, snapshot: Snapshot) -> Checkpoint:
        """Write a snapshot in this process, then delete the checkpoints that no rule keeps."""
        checkpoint = self.store.save(snapshot, self.plan.name_of(snapshot.about))
        self.prune(checkpoint)
        return checkpoint

    def submit(self, snapshot: Snapshot, done: Callable[[Checkpoint], None]) -> None:
        """Write a snapshot in the background. All ranks must call it.

        Args:
            snapshot: The snapshot.
            done: Function that ``poll`` or ``wait`` calls when the snapshot is written.
        """
        if self._writer is not None:
            self._writer.submit(snapshot, done)

    def poll(self) -> None:
        """Finish a background save that has ended, or raise its error. All ranks must call it."""
        if self._writer is not None:
            self._writer.poll()

    def wait(self) -> None:
        """Wait for the background save, and finish it. All ranks must call it."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Wait for the last background save, and free its memory. All ranks must call it."""
        if self._writer is not None:
            self._writer.close()

    @property
    def is_writing(self) -> bool:
        """True while a thread of this process writes a checkpoint."""
        return self._writer is not None and self._writer.in_flight

    def when_written(self, act: Callable[[], None]) -> None:
        """Call a function in the background thread when the save has ended."""
        if self._writer is not None:
            self._writer.when_ended(act)

    def newest(self) -> Path | None:
        """Return the path of the newest checkpoint. All ranks must call it."""
        latest = self.store.latest()
        return None if latest is None else latest.path

    # -- deleting ----------------------------------------------------------------------------------

    def prune(self, newest: Checkpoint) -> None:
        """Delete the checkpoints that no rule keeps, after a new one is written."""
        if self.plan.keep is None:
            return
        there = self.store.checkpoints()
        gone = [checkpoint for checkpoint in to_delete(there, self.plan.keep) if checkpoint.path != newest.path]
        if gone and len(there) - len(gone) == 1:
            self.store.verify(newest)  # It is about to be the only checkpoint.
        self._delete(gone)

    def prune_finished(self) -> None:
        """Delete the newest checkpoint of a finished run if ``keep_last=0``.

        It stays if another rule keeps it. All ranks must call it.
        """
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
            except CheckpointError as error:  # The new checkpoint is safe, so the run continues.
                logger.warning("%s", error)


class RankSlot(Slot):
    """A slot for several processes. All ranks take part in each save, and know how it ended.

    Rank zero writes the full tensors. Each rank writes its shards of the tensors that are sharded.

    Args:
        plan: The plan of a callback.
        folder: The folder of the run.
        schedule: When a checkpoint is due, if the plan has an interval.
        world: The processes of the run.
    """

    def __init__(self, plan: SavePlan, folder: Path, schedule: SaveSchedule | None, world: Ranks) -> None:
        super().__init__(plan, folder, schedule, wake=lambda: None)  # One rank must not wake up alone.
        self._world, self._group = world, world.group
        self._is_submitted = False
        self._written: list[Checkpoint] = []
        self._done: Callable[[Checkpoint], None] | None = None
        if world.is_sharded and self.background:
            self.background = False
            if not self._group.rank:
                logger.info("background=True: what is spread over ranks is written in the foreground")
        if not self.background or self._group.rank:
            self._writer = None

    def sweep(self) -> None:
        """Remove the remains of a killed process from the store, on rank zero."""
        if not self._group.rank:
            super().sweep()

    def write(self, snapshot: Snapshot) -> Checkpoint:
        """Write a snapshot, then delete the checkpoints that no rule keeps.

        All ranks must call it.
        """
        with self._world.patient():
            if not self._world.is_sharded and not is_shared(snapshot):
                return _unpacked(by_zero(self._group, lambda: _packed(self.write_alone(snapshot))))
            name = self.plan.name_of(snapshot.about)
            checkpoint = save_together(self.store.folder, snapshot, name, self._group)
            by_zero(self._group, lambda: self.prune(checkpoint))
            return checkpoint

    def submit(self, snapshot: Snapshot, done: Callable[[Checkpoint], None]) -> None:
        """Write a snapshot in the background, on rank zero. All ranks must call it.

        Args:
            snapshot: The snapshot.
            done: Function that ``poll`` or ``wait`` calls on all ranks when the snapshot is written.
        """
        self._done = done
        by_zero(self._group, lambda: super(RankSlot, self).submit(snapshot, self._written.append))
        self._is_submitted = True

    def poll(self) -> None:
        """Finish a background save that has ended, or raise its error. All ranks must call it."""
        self._finish(super().poll)

    def wait(self) -> None:
        """Wait for the background save, and finish it. All ranks must call it."""
        with self._world.patient():
            self._finish(super().wait)

    def close(self) -> None:
        """Wait for the last background save. All ranks must call it.

        After an error, rank zero waits only for its own thread.
        """
        if not self._world.broken:
            self.wait()
        super().close()

    def prune_finished(self) -> None:
        """Delete the newest checkpoint of a finished run if ``keep_last=0``.

        It stays if another rule keeps it. All ranks must call it.
        """
        by_zero(self._group, super().prune_finished)

    def newest(self) -> Path | None:
        """Return the path of the newest checkpoint on rank zero. All ranks must call it."""
        found = by_zero(self._group, lambda: None if (its := super(RankSlot, self).newest()) is None else str(its))
        return None if found is None else Path(found)

    def _finish(self, look: Callable[[], None]) -> None:
        """Call ``done`` on all ranks if rank zero has written the checkpoint.

        All ranks must call it.

        Args:
            look: Function that polls or waits for the thread of rank zero.
        """
        if not self._is_submitted:
            return

        def written() -> list[str] | None:
            look()
            return _packed(self._written.pop()) if self._written else None

        try:
            found = by_zero(self._group, written)
        except Exception:
            self._is_submitted = False
            raise
        if found is not None:
            self._is_submitted = False
            if self._done is not None:
                self._done(_unpacked(found))


def _packed(checkpoint: Checkpoint) -> list[str]:
    return [str(checkpoint.path), checkpoint.manifest.to_bytes().decode()]


def _unpacked(packed: list[str]) -> Checkpoint:
    path = Path(packed[0])
    return Checkpoint(path, Manifest.from_bytes(packed[1].encode(), str(path / MANIFEST)))
