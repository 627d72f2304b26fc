"""``Store``: the checkpoints of a run in its folder. What is latest or best is computed, never kept as a link."""

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
    """Something in the folder that is no checkpoint, or no longer one."""

    path: Path
    reason: str


class Store:
    """The checkpoints in ``<run>/checkpoints``. It holds nothing but the path, so any number may look at one folder.

    One process at a time may write: hold a ``FolderLock`` on the run's folder for ``save``, ``delete`` and ``sweep``.

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
        """Write a checkpoint; when this returns it is on the disk and has its name.

        Without a ``name`` it is called by its step. A name that is taken is not written over: the new one gets a
        number. Of two with the same generation and step the later one is the newer.
        """
        ready = prepare(snapshot)
        with commit.Commit(self.folder, ready.name(name), ready.size) as writing:
            files = {file: writing.write(file, parts()) for file, parts in ready.files.items()}
            manifest = Manifest(ready.about, MappingProxyType(files), time.time())
            path = writing.finish(manifest.to_bytes())
        return Checkpoint(path, manifest)

    def checkpoints(self) -> list[Checkpoint]:
        """All that are valid by their manifest and the sizes of their files, in the order of (generation, step)."""
        return self._scan()[0]

    def rejected(self) -> list[Rejected]:
        """Folders and links beside them that are not valid, and why. Our own temporaries are not among them."""
        return self._scan()[1]

    def latest(self, exact: bool = True) -> Checkpoint | None:
        """The one with the highest (generation, step); with ``exact`` those that were saved after an error are not."""
        found = [item for item in self.checkpoints() if item.about.exact or not exact]
        return found[-1] if found else None

    def best(self, monitor: str, mode: str = "min") -> Checkpoint | None:
        """The one with the lowest or highest value of a metric; of equal ones the earlier. NaN is never best.

        ``None`` if there are no checkpoints; if none of them has the metric that is an error.
        """
        if mode not in ("min", "max"):
            raise SetupError(f"mode={mode!r}: give 'min' or 'max'")
        found = self.checkpoints()
        known = [item for item in found if not math.isnan(item.about.metrics.get(monitor, math.nan))]
        if not found:
            return None
        if not known:
            have = ", ".join(sorted({name for item in found for name in item.about.metrics})) or "none at all"
            raise CheckpointNotFoundError(
                f"{self.folder}: none of {len(found)} checkpoints has a value of {monitor!r}; they have {have}"
            )
        sign = 1 if mode == "min" else -1
        return min(known, key=lambda item: sign * item.about.metrics[monitor])

    def load(
        self,
        checkpoint: Checkpoint | str | os.PathLike[str],
        room: Room | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> Snapshot:
        """Read a checkpoint, here or anywhere; the hash of each file is checked in the same pass.

        Sharded tensors are read into what ``room`` returns for a name, shape and dtype, so that a rank reads only its
        own slices; without ``room`` they are full tensors. Where several ranks load, each checks the hashes of its
        ``share`` of the shards, such as ``(0, 2)``, and they exchange the result.
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
            raise CheckpointCorruptError(path, f"it is a {type(state).__name__} and not a dict")
        return Snapshot(found.about, weights, state)

    def verify(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> None:
        """Compare the hash of every file with the manifest's; one that differs is a ``CheckpointCorruptError``."""
        found = self._found(checkpoint)
        with opened(found.path) as folder:
            for name, expected in found.manifest.files.items():
                with HashedReader(str(found.path / name), name, folder, expected) as file:
                    file.finish()

    def newest_valid(self, strict: bool = False, exact: bool = True) -> Checkpoint | None:
        """The newest whose hashes are right. Those that were passed over are named in a warning, or raise if strict."""
        found = self._first(self.verify, strict, exact)
        return None if found is None else found[0]

    def load_newest(
        self, strict: bool = False, exact: bool = True, load: Callable[[Checkpoint], Snapshot] | None = None
    ) -> tuple[Checkpoint, Snapshot] | None:
        """``newest_valid`` and ``load`` in one pass over the files; those of weights only are not among them.

        ``load`` is how each is tried, if not as ``self.load`` does.
        """
        return self._first(load or self.load, strict, exact, whole=True)

    def delete(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint of this folder: first its name, so that it is never seen half there."""
        path = checkpoint.path
        if path.parent != self.folder:
            raise CheckpointError(f"{path} is not in {self.folder}: only a store's own checkpoints can be deleted")
        trash = self.folder / names.trash_of(names.check_name(path.name))
        try:
            os.rename(path, trash)
            commit.sync_folder(self.folder)
            commit.remove_flat(trash)
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"{path} is not there, so it cannot be deleted") from None
        except OSError as error:
            raise CheckpointError(f"{path} could not be deleted: {error}; is the folder yours to write?") from error

    def sweep(self) -> list[Path]:
        """Remove what a killed process left: temporaries and trash of ours. Hold the folder's lock meanwhile.

        Only folders whose name is exactly of our kind and that hold nothing but a checkpoint's files are removed;
        one that holds more is left, with a warning.
        """
        removed = []
        for entry in self._entries():
            if not names.is_ours(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            try:
                if foreign := _foreign(path):
                    warnings.warn(
                        f"{path} is a temporary of Hookline and holds {foreign!r}, which is not; "
                        f"it was left: move that away and remove the folder",
                        HooklineWarning,
                        stacklevel=2,
                    )
                    continue
                commit.remove_flat(path)
            except OSError as error:
                warnings.warn(f"{path} is a stale temporary and stays: {error}", HooklineWarning, stacklevel=2)
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
                continue  # a file of someone's own
            try:
                valid.append(inspect(path))
            except CheckpointNotFoundError:
                vanished = True  # it has just been deleted
            except CheckpointCorruptError as error:
                rejected.append(Rejected(path, f"{Path(error.path).name}: {error.reason}"))
        if vanished and not valid and looks > 1:  # a newer one was saved before, and this look came too early for it
            return self._scan(looks - 1)
        valid.sort(key=lambda item: (item.about.generation, item.about.step, item.manifest.created, item.name))
        return valid, sorted(rejected, key=lambda item: item.path.name)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []  # nothing has been saved yet
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error

    def _found(self, checkpoint: Checkpoint | str | os.PathLike[str]) -> Checkpoint:
        """Looked at again: it may have changed since it was listed."""
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
                vanished = True  # it has just been deleted
                continue
            except CheckpointCorruptError as error:
                skipped.append(f"{checkpoint.name} ({Path(error.path).name}: {error.reason})")
                continue
            if skipped:
                warnings.warn(
                    f"{self.folder}: {checkpoint.name} is used; damaged and passed over: {', '.join(skipped)}",
                    HooklineWarning,
                    stacklevel=3,
                )
            return checkpoint, result
        if vanished and looks > 1:  # whoever deleted it has saved a newer one before
            return self._first(attempt, strict, exact, whole, looks - 1)
        if not skipped:
            return None
        what = "damaged, and strict=True was asked for" if strict else "no valid checkpoint; damaged"
        raise CheckpointCorruptError(
            str(self.folder), f"{what}: {', '.join(skipped)}", "remove or repair them, or name a checkpoint to use"
        )


def _foreign(folder: Path) -> str:
    """The first thing in a folder that no checkpoint has; empty if there is none."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not names.is_part(entry.name) or not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return entry.name
    return ""
