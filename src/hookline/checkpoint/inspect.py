"""Inspect a checkpoint without reading its tensors: its manifest and its file sizes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hookline.checkpoint import commit, names, strict_json
from hookline.checkpoint.hashed_file import HashedReader, wrong_size
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.snapshot import About
from hookline.errors import CheckpointCorruptError, CheckpointNotFoundError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint with a valid manifest and files of the right sizes.

    Reading the checkpoint verifies the hashes.
    """

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def about(self) -> About:
        return self.manifest.about

    @property
    def size(self) -> int:
        """Total size of the files in bytes, without the manifest."""
        return sum(file.size for file in self.manifest.files.values())

    @property
    def weights_only(self) -> bool:
        return names.STATE not in self.manifest.files

    @property
    def is_sharded(self) -> bool:
        """True if several ranks wrote the checkpoint, each its own shard."""
        return names.SHARD_INDEX in self.manifest.files

    def __hash__(self) -> int:  # The mappings in the manifest are not hashable.
        return hash(self.path)


def inspect(path: Path) -> Checkpoint:
    """Return the checkpoint at a path.

    Args:
        path: Folder of the checkpoint.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
        CheckpointCorruptError: If a file is missing, has the wrong size or does not belong to the checkpoint.
    """
    with opened(path) as folder:
        where = str(path / names.MANIFEST)
        with HashedReader(where, names.MANIFEST, folder) as file:
            manifest = Manifest.from_bytes(file.read(min(file.size, strict_json.MAX_BYTES + 1)), where)
        there = set(os.listdir(folder)) - {names.MANIFEST}
        if extra := there - manifest.files.keys():
            raise CheckpointCorruptError(
                str(path / min(extra)), "it is in the folder, but not in the manifest", "move it to another folder"
            )
        for name, expected in manifest.files.items():
            _check_size(path / name, folder, expected.size)
    return Checkpoint(path, manifest)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open the folder of a checkpoint, so that all reads use this folder even if it is renamed."""
    try:
        folder = commit.open_folder(path)
    except FileNotFoundError:
        raise CheckpointNotFoundError(f"{path} does not exist. Check the path.") from None
    except OSError as error:
        if path.is_symlink():
            raise CheckpointCorruptError(str(path), "it is a symbolic link", "give the folder itself") from None
        reason = "it is not a folder" if not path.is_dir() else f"it cannot be opened: {error.strerror}"
        raise CheckpointCorruptError(str(path), reason, "a checkpoint is a folder with a manifest.json") from error
    try:
        yield folder
    except CheckpointCorruptError as error:
        if not os.path.lexists(path):  # Another process renamed the folder and then deleted its files.
            raise CheckpointNotFoundError(f"{path} was deleted while it was read.") from error
        raise
    finally:
        os.close(folder)


def _check_size(path: Path, folder: int, expected: int) -> None:
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise CheckpointCorruptError(str(path), "it is missing") from None
    except OSError as error:
        raise CheckpointCorruptError(str(path), f"it cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise CheckpointCorruptError(str(path), "it is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointCorruptError(str(path), "it is not a file")
    if found.st_size != expected:
        raise wrong_size(str(path), found.st_size, expected)
