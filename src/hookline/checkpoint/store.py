"""``Store``: the checkpoints in a folder."""

from __future__ import annotations

import math
import os
import stat
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from hookline.checkpoint import commit, names, strict_json
from hookline.checkpoint.decode import decode
from hookline.checkpoint.hashed_file import HashedReader
from hookline.checkpoint.inspect import Checkpoint, inspect, opened
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.prepared import prepare
from hookline.checkpoint.shard_reader import Room, read_sharded
from hookline.checkpoint.snapshot import Snapshot
from hookline.checkpoint.tensor_file import read_tensors
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    HooklineWarning,
    SetupError,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A folder or link that is not a valid checkpoint, and the reason."""

    path: Path
    reason: str


class Store:
    """The checkpoints in one folder, usually ``<run>/checkpoints``.

    A store keeps no state except the path, so several stores may read one folder. Only one process may write: hold a
    ``FolderLock`` on the run's folder for ``save``, ``delete`` and ``sweep``.

    Args:
        folder: The folder. It may not exist yet.

    Example:
        >>> import tempfile, torch
        >>> from hookline.checkpoint import About, Snapshot
        >>> about = About(step=500, epoch=1, batch=0, sample=0, seconds=2.5, run="demo", metrics={"loss": 0.25})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(folder)
        ...     saved = store.save(Snapshot(about, {"weight": torch.ones(2)}, {"lr": 0.1}))
        ...     print(saved.name, store.latest() == saved, store.load(saved).state)
        step-00000500 True {'lr': 0.1}
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def save(self, snapshot: Snapshot, name: str | None = None) -> Checkpoint:
        """Write a checkpoint. It is on disk when this method returns.

        Args:
            snapshot: The snapshot to save.
            name: Name of the checkpoint. By default it is named by its step. If the name is taken, the new
                checkpoint gets a number.

        Returns:
            The new checkpoint. It counts as newer than others with the same generation and step.

        Raises:
            StateError: If the snapshot contains a value that cannot be saved.
            CheckpointWriteError: If the disk is full or not writable.
        """
        ready = prepare(snapshot)
        with commit.Commit(self.folder, ready.name(name), ready.size) as writing:
            files = {file: writing.write(file, parts()) for file, parts in ready.files.items()}
            manifest = Manifest(ready.about, MappingProxyType(files), time.time())
            path = writing.finish(manifest.to_bytes())
        return Checkpoint(path, manifest)

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints by (generation, step).

        They have a valid manifest and files of the right sizes. Their hashes are not verified.
        """
        return self._scan()[0]

    def rejected(self) -> list[Rejected]:
        """Return the folders and links that are not valid checkpoints.

        Temporary folders of Hookline are not among them.
        """
        return self._scan()[1]

    def latest(self, exact: bool = True) -> Checkpoint | None:
        """Return the checkpoint with the highest (generation, step), or ``None``.

        Args:
            exact: Skip checkpoints that were saved after an error.
        """
        found = [item for item in self.checkpoints() if item.about.exact or not exact]
        return found[-1] if found else None

    def best(self, monitor: str, mode: str = "min") -> Checkpoint | None:
        """Return the checkpoint with the best value of a metric.

        The result is ``None`` if the folder has no checkpoints.

        NaN is never the best value. If values are equal, the earlier checkpoint is better.

        Args:
            monitor: Name of the metric.
            mode: ``"min"`` or ``"max"``.

        Raises:
            SetupError: If ``mode`` is invalid.
            CheckpointNotFoundError: If no checkpoint has a value of the metric.
        """
        if mode not in ("min", "max"):
            raise SetupError(f"Store.best(mode={mode!r}): must be 'min' or 'max'.")
        found = self.checkpoints()
        known = [item for item in found if not math.isnan(item.about.metrics.get(monitor, math.nan))]
        if not found:
            return None
        if not known:
            have = ", ".join(sorted({name for item in found for name in item.about.metrics})) or "none"
            raise CheckpointNotFoundError(
                f"{self.folder}: none of {len(found)} checkpoints has a value of {monitor!r}. Available: {have}."
            )
        sign = 1 if mode == "min" else -1
        return min(known, key=lambda item: sign * item.about.metrics[monitor])

    def load(
        self,
        checkpoint: Checkpoint | str | os.PathLike[str],
        room: Room | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> Snapshot:
        """Read a checkpoint and verify the hash of each file in the same pass.

        Args:
            checkpoint: A checkpoint, or the path of one in any folder.
            room: Function that returns the tensor to read a sharded tensor into, by name, shape and dtype. A rank
                then reads only its own slices. By default, sharded tensors are read as full tensors.
            share: The fraction of the shards to verify, such as ``(0, 2)`` for the first half. Several ranks can
                divide the shards among them and exchange the results.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If the checkpoint is damaged.
        """
        found = self._found(checkpoint)
        with opened(found.path) as folder:

            def reader(name: str) -> HashedReader:
                return HashedReader(str(found.path / name), name, folder, found.manifest.files[name])

            with reader(names.MODEL) as file:
                weights = read_tensors(file)
                file.finish()
            tree, tensors = None, {}
            if not found.weights_only:
                with reader(names.STATE) as file:
                    data = file.read(min(file.size, strict_json.MAX_BYTES + 1))
                    file.finish()
                    tree = strict_json.parse(data, file.path)
                with reader(names.STATE_TENSORS) as file:
                    tensors = read_tensors(file)
                    file.finish()
            if found.is_sharded:
                sharded = read_sharded(str(found.path), folder, found.manifest.files, room, share)
                weights |= sharded[0]
                tensors |= sharded[1]
        if found.weights_only:
            return Snapshot(found.about, weights)
        path = str(found.path / names.STATE)
        state = decode(tree, tensors, path)
        if not isinstance(state, dict):
            raise CheckpointCorruptError(path, f"it is a {type(state).__name__}, not a dict")
        return Snapshot(found.about, weights, state)

    def verify(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> None:
        """Compare the hash of every file with the manifest.

        Args:
            checkpoint: A checkpoint, or the path of one in any folder.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If a hash differs.
        """
        found = self._found(checkpoint)
        with opened(found.path) as folder:
            for name, expected in found.manifest.files.items():
                with HashedReader(str(found.path / name), name, folder, expected) as file:
                    file.finish()

    def newest_valid(self, strict: bool = False, exact: bool = True) -> Checkpoint | None:
        """Return the newest checkpoint with correct hashes, or ``None``.

        Hookline warns about damaged checkpoints.

        Args:
            strict: Raise an error instead of skipping damaged checkpoints.
            exact: Skip checkpoints that were saved after an error.

        Raises:
            CheckpointCorruptError: If all checkpoints are damaged, or one is and ``strict`` is set.
        """
        found = self._first(self.verify, strict, exact)
        return None if found is None else found[0]

    def load_newest(
        self, strict: bool = False, exact: bool = True, load: Callable[[Checkpoint], Snapshot] | None = None
    ) -> tuple[Checkpoint, Snapshot] | None:
        """Return the newest valid checkpoint and its snapshot, or ``None``.

        The files are read and verified in one pass.

        Checkpoints with weights only are skipped.

        Args:
            strict: Raise an error instead of skipping damaged checkpoints.
            exact: Skip checkpoints that were saved after an error.
            load: Function to read a checkpoint with, in place of ``self.load``.

        Raises:
            CheckpointCorruptError: If all checkpoints are damaged, or one is and ``strict`` is set.
        """
        return self._first(load or self.load, strict, exact, whole=True)

    def delete(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint of this folder.

        It is renamed first, so that no process sees a part of it.

        Args:
            checkpoint: The checkpoint to delete.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointError: If it is in another folder or cannot be deleted.
        """
        path = checkpoint.path
        if path.parent != self.folder:
            raise CheckpointError(f"{path} is not in {self.folder}. A store can delete only its own checkpoints.")
        trash = self.folder / names.trash_of(names.check_name(path.name))
        try:
            os.rename(path, trash)
            commit.sync_folder(self.folder)
            commit.remove_flat(trash)
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"{path} cannot be deleted: it does not exist.") from None
        except OSError as error:
            raise CheckpointError(
                f"{path} could not be deleted: {error}. Check the permissions of the folder."
            ) from error

    def sweep(self) -> list[Path]:
        """Remove temporary and trash folders of killed processes.

        Hold the folder's lock during the call.

        A folder is removed only if its name has exactly Hookline's pattern and it contains only files of a checkpoint.
        Hookline warns about a folder that contains other files, and leaves it.

        Returns:
            The paths that were removed.
        """
        removed = []
        for entry in self._entries():
            if not names.is_ours(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            try:
                if foreign := _foreign(path):
                    warnings.warn(
                        f"{path} is a temporary folder of Hookline, but contains the other file {foreign!r}. "
                        f"Hookline did not remove it. Move the file and remove the folder.",
                        HooklineWarning,
                        stacklevel=2,
                    )
                    continue
                commit.remove_flat(path)
            except OSError as error:
                warnings.warn(f"{path} is temporary, but cannot be removed: {error}.", HooklineWarning, stacklevel=2)
                continue
            removed.append(path)
        return removed

    def _scan(self, looks: int = 3) -> tuple[list[Checkpoint], list[Rejected]]:
        valid, rejected, vanished = [], [], False
        for entry in self._entries():
            if entry.name.startswith(".") or names.is_ours(entry.name):
                continue
            path = Path(entry.path)
            if not entry.is_symlink() and not entry.is_dir(follow_symlinks=False):
                continue  # A file that Hookline did not write.
            try:
                valid.append(inspect(path))
            except CheckpointNotFoundError:
                vanished = True  # Another process has just deleted it.
            except CheckpointCorruptError as error:
                rejected.append(Rejected(path, f"{Path(error.path).name}: {error.reason}"))
        if vanished and not valid and looks > 1:  # A writer deletes only after it has saved a newer one: scan again.
            return self._scan(looks - 1)
        valid.sort(key=lambda item: (item.about.generation, item.about.step, item.manifest.created, item.name))
        return valid, sorted(rejected, key=lambda item: item.path.name)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []  # No checkpoint has been saved yet.
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}.") from error

    def _found(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> Checkpoint:
        """Inspect a checkpoint again: it may have changed since it was listed."""
        path = checkpoint.path if isinstance(checkpoint, Checkpoint) else Path(checkpoint).absolute()
        return inspect(path)

    def _first(
        self, attempt: Callable[[Checkpoint], _T], strict: bool, exact: bool, whole: bool = False, looks: int = 10
    ) -> tuple[Checkpoint, _T] | None:
        valid, rejected = self._scan()
        vanished = False
        skipped = [f"{item.path.name} ({item.reason})" for item in rejected]
        usable = [item for item in valid if (item.about.exact or not exact) and not (whole and item.weights_only)]
        for checkpoint in reversed(usable):
            if strict and skipped:
                break
            try:
                result = attempt(checkpoint)
            except CheckpointNotFoundError:
                vanished = True  # Another process has just deleted it.
                continue
            except CheckpointCorruptError as error:
                skipped.append(f"{checkpoint.name} ({Path(error.path).name}: {error.reason})")
                continue
            if skipped:
                warnings.warn(
                    f"{self.folder}: damaged checkpoints: {', '.join(skipped)}. Using {checkpoint.name}.",
                    HooklineWarning,
                    stacklevel=3,
                )
            return checkpoint, result
        if vanished and looks > 1:  # A writer deletes only after it has saved a newer one: scan again.
            return self._first(attempt, strict, exact, whole, looks - 1)
        if not skipped:
            return None
        what = "damaged checkpoints, and strict=True" if strict else "no valid checkpoint; damaged"
        raise CheckpointCorruptError(
            str(self.folder), f"{what}: {', '.join(skipped)}", "remove or repair them, or give the path of a checkpoint"
        )


def _foreign(folder: Path) -> str:
    """Return the name of the first entry that no checkpoint contains, or an empty string."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not names.is_part(entry.name) or not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return entry.name
    return ""
