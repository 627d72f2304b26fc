"""Find the checkpoint that a run resumes from: one that all ranks can read."""

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
        """Return the generation of the next checkpoints.

        It is a new generation if there are checkpoints newer than this one.
        """
        newest, about = self.store.checkpoints()[-1].about, self.checkpoint.about
        newer = (newest.generation, newest.step) > (about.generation, about.step)
        return newest.generation + 1 if newer else about.generation

    def passed_over(self, resume: Resume) -> list[Path]:
        """Return the damaged checkpoints that Hookline rejected before it found this one.

        Return none if the user gave the path of a checkpoint.
        """
        if resume.path != "auto" and (Path(resume.path) / MANIFEST).exists():
            return []
        there = [found.path for found in self.store.checkpoints() if found.about.exact and not found.weights_only]
        # The sizes of their files are right, but not the hashes.
        newer = there[there.index(self.checkpoint.path) + 1 :]
        return [*(rejected.path for rejected in self.store.rejected()), *newer]


def find_checkpoint(resume: Resume, folder: Path | None, group: AnyGroup, rooms: Rooms) -> Found | None:
    """Find and read the checkpoint to resume from. All ranks must call it.

    Args:
        resume: The checkpoint, or the folder to look in.
        folder: The folder of the run.
        group: The processes of the run.
        rooms: The tensors to read a sharded checkpoint into.

    Returns:
        The checkpoint and its content, or ``None`` if ``"auto"`` finds none.

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
            f"{store.folder} holds weights only, so a run cannot resume from there; start a new run with "
            f"callbacks=[hl.LoadWeights(path)]"
        )
    return None


def _leading(group: AnyGroup, store: Store, resume: Resume, load: Load) -> tuple[Checkpoint, Snapshot] | None:
    """Find the newest valid checkpoint on rank zero, and send each candidate to the other ranks."""
    found, errors = None, []

    def try_one(checkpoint: Checkpoint) -> Snapshot:
        group.from_zero(str(checkpoint.path))
        return load(checkpoint)

    try:
        found = store.load_newest(strict=resume.strict, load=try_one)
    except CheckpointError as error:
        errors.append(error)
    group.from_zero(None)  # The other ranks wait for a candidate: there are no more.
    by_zero(group, partial(_raise_one_of, errors))
    return found


def _raise_one_of(errors: list[CheckpointError]) -> None:
    for error in errors:
        raise error


def _following(group: AnyGroup, load: Load) -> tuple[Checkpoint, Snapshot] | None:
    """Try each candidate of rank zero on another rank, until all ranks can read one."""
    found = None
    while (path := group.from_zero(cast(str | None, None))) is not None:
        checkpoint = Checkpoint(Path(path), MISSING)  # type: ignore[arg-type]  # the load reads the manifest
        try:
            snapshot = load(checkpoint)
            found = inspect(checkpoint.path), snapshot
        except (CheckpointCorruptError, CheckpointNotFoundError):
            found = None  # Rank zero also rejects it.
    by_zero(group, partial(_raise_one_of, []))
    return found
