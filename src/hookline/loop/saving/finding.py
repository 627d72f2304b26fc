"""Find the checkpoint that a run resumes from. With several ranks, it is one that all ranks can read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from hookline.checkpoint import Checkpoint, Snapshot, Store
from hookline.checkpoint.agreement import agreed, by_zero
from hookline.checkpoint.inspect import inspect
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.request import Resume
from hookline.distributed.solo import AnyGroup
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    HooklineWarning,
)
from hookline.loop.saving.placing import Rooms
from hookline.run import MISSING

Load = Callable[[Checkpoint], Snapshot]


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint that a run resumes from, with its content."""

    store: Store
    checkpoint: Checkpoint
    snapshot: Snapshot

    def next_generation(self) -> int:
        """Return the generation of the checkpoints that follow: a new one if there are newer checkpoints."""
        newest, about = self.store.checkpoints()[-1].about, self.checkpoint.about
        newer = (newest.generation, newest.step) > (about.generation, about.step)
        return newest.generation + 1 if newer else about.generation

    def passed_over(self, resume: Resume) -> list[Path]:
        """Return the damaged checkpoints among which this one was the newest valid; none if a path was given."""
        if resume.path != "auto" and (Path(resume.path) / MANIFEST).exists():
            return []
        there = [found.path for found in self.store.checkpoints() if found.about.exact and not found.weights_only]
        newer = there[there.index(self.checkpoint.path) + 1 :]  # complete by their sizes, but not by their hashes
        return [*(rejected.path for rejected in self.store.rejected()), *newer]


def find_checkpoint(resume: Resume, folder: Path | None, group: AnyGroup, rooms: Rooms) -> Found | None:
    """By all: find and read the checkpoint to resume from. Return ``None`` if ``"auto"`` finds none.

    Args:
        resume: What the run resumes from.
        folder: The folder of the run.
        group: The processes of the run.
        rooms: The tensors to read a sharded checkpoint into.

    Raises:
        CheckpointNotFoundError: If the path that was given holds no checkpoint.
        CheckpointMismatchError: If there are only checkpoints of weights.
    """

    def load(store: Store, checkpoint: Checkpoint | Path) -> Snapshot:
        found: list[Snapshot] = []
        # Each rank reads its part. If one rank cannot read the checkpoint, no rank uses it.
        agreed(group, lambda: found.append(store.load(checkpoint, rooms, (group.rank, group.size))))
        return found[0]

    if resume.path == "auto":
        return _newest(Store(folder / FOLDER if folder else FOLDER), resume, group, load)
    path = Path(resume.path).absolute()
    if (path / MANIFEST).exists() or not path.is_dir():
        store = Store(path.parent)
        snapshot = load(store, path)
        checkpoint = next(c for c in store.checkpoints() if c.path == path)
        if not snapshot.about.exact and not group.rank:
            warnings.warn(
                f"{path} was saved after an error inside a step: what follows is not what would have followed",
                HooklineWarning,
                stacklevel=2,
            )
        return Found(store, checkpoint, snapshot)
    store = Store(path / FOLDER if (path / FOLDER).is_dir() else path)
    found = _newest(store, resume, group, load)
    if found is None:
        raise CheckpointNotFoundError(f"resume={str(resume.path)!r}: there is no checkpoint in {store.folder}")
    return found


def _newest(
    store: Store, resume: Resume, group: AnyGroup, load: Callable[[Store, Checkpoint], Snapshot]
) -> Found | None:
    load_one = partial(load, store)
    found = _following(group, load_one) if group.rank else _leading(group, store, resume, load_one)
    if found is not None:
        return Found(store, *found)
    if any(checkpoint.weights_only for checkpoint in store.checkpoints()):
        raise CheckpointMismatchError(
            f"{store.folder} holds weights only, so a run cannot go on from there; start a new run with "
            f"callbacks=[hl.LoadWeights(path)]"
        )
    return None


def _leading(group: AnyGroup, store: Store, resume: Resume, load: Load) -> tuple[Checkpoint, Snapshot] | None:
    """On rank zero: look for the newest checkpoint, and tell the other ranks which one to try."""
    found, errors = None, []

    def try_one(checkpoint: Checkpoint) -> Snapshot:
        group.from_zero(str(checkpoint.path))
        return load(checkpoint)

    try:
        found = store.load_newest(strict=resume.strict, load=try_one)
    except CheckpointError as error:
        errors.append(error)
    group.from_zero(None)  # There are no more.
    by_zero(group, partial(_raise_one_of, errors))
    return found


def _raise_one_of(errors: list[CheckpointError]) -> None:
    for error in errors:
        raise error


def _following(group: AnyGroup, load: Load) -> tuple[Checkpoint, Snapshot] | None:
    """On the other ranks: try what rank zero tries, until it has found a checkpoint that all ranks can read."""
    found = None
    while (path := group.from_zero(cast(str | None, None))) is not None:
        checkpoint = Checkpoint(Path(path), MISSING)  # type: ignore[arg-type]  # the load reads the manifest
        try:
            snapshot = load(checkpoint)
            found = inspect(checkpoint.path), snapshot
        except (CheckpointCorruptError, CheckpointNotFoundError):
            found = None  # Rank zero passes it over as well.
    by_zero(group, partial(_raise_one_of, []))
    return found
