"""``RankTarget``: one plan at work in several processes. All go through each save, and all know how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline.checkpoint import Checkpoint, Manifest, Snapshot
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.plan import SavePlan
from hookline.checkpoint.together import is_shared, save_together
from hookline.loop.saving.slots import Target
from hookline.loop.saving.verification import AtSteps
from hookline.loop.world.ranks import Ranks
from hookline.progress import Schedule

logger = logging.getLogger("hookline")


class RankTarget(Target):
    """Weights that every rank has are written by rank zero; of those that are spread each rank writes its part."""

    def __init__(self, plan: SavePlan, folder: Path, schedule: Schedule | AtSteps | None, world: Ranks) -> None:
        super().__init__(plan, folder, schedule, wake=lambda: None)  # one rank must not look alone
        self._world, self._group = world, world.group
        self._flying = False
        self._landed: list[Checkpoint] = []
        self._done: Callable[[Checkpoint], None] | None = None
        if world.is_sharded and self.background:
            self.background = False
            if not self._group.rank:
                logger.info("background=True: what is spread over ranks is written in the foreground")
        if not self.background or self._group.rank:
            self.writer = None

    def sweep(self) -> None:
        if not self._group.rank:
            super().sweep()

    def write(self, snapshot: Snapshot) -> Checkpoint:
        """By all."""
        with self._world.patient():
            if not self._world.is_sharded and not is_shared(snapshot):
                return _understood(by_zero(self._group, lambda: _told(self.write_alone(snapshot))))
            name = self.plan.name_of(snapshot.about)
            checkpoint = save_together(self.store.folder, snapshot, name, self._group)
            by_zero(self._group, lambda: self.prune(checkpoint))
            return checkpoint

    def submit(self, snapshot: Snapshot, done: Callable[[Checkpoint], None]) -> None:
        """By all."""
        self._done = done

        def begin() -> None:
            if self.writer is not None:
                self.writer.submit(snapshot, self._landed.append)

        by_zero(self._group, begin)
        self._flying = True

    def poll(self) -> None:
        """By all."""
        self._look(wait=False)

    def wait(self) -> None:
        """By all."""
        with self._world.patient():
            self._look(wait=True)

    def close(self) -> None:
        """By all; after an error nobody waits for the others, and rank zero only for its own thread."""
        if not self._world.broken:
            self.wait()
        if self.writer is not None:
            self.writer.close()

    def prune_finished(self) -> None:
        """By all."""
        by_zero(self._group, super().prune_finished)

    def newest(self) -> Path | None:
        """By all."""
        found = by_zero(self._group, lambda: None if (its := super(RankTarget, self).newest()) is None else str(its))
        return None if found is None else Path(found)

    def _look(self, *, wait: bool) -> None:
        if not self._flying:
            return

        def look() -> Any:
            if self.writer is not None:
                self.writer.wait() if wait else self.writer.poll()
            return _told(self._landed.pop()) if self._landed else None

        try:
            found = by_zero(self._group, look)
        except Exception:
            self._flying = False
            raise
        if found is not None:
            self._flying = False
            if self._done is not None:
                self._done(_understood(found))


def _told(checkpoint: Checkpoint) -> list[str]:
    return [str(checkpoint.path), checkpoint.manifest.to_bytes().decode()]


def _understood(said: list[str]) -> Checkpoint:
    path = Path(said[0])
    return Checkpoint(path, Manifest.from_bytes(said[1].encode(), str(path / MANIFEST)))
