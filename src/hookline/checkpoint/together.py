"""Write one checkpoint on all ranks: it is complete or absent.

1. The ranks exchange which chunks they hold. Each rank computes the same plan of which rank writes which chunk.
2. Rank zero creates the new folder. Every rank writes, syncs and hashes its shard in it.
3. The ranks exchange the results. If a rank failed, all ranks raise the same error and rank zero removes the folder.
4. Otherwise rank zero adds the other files, the index and the manifest, and renames the folder.

No rank raises an error alone between these steps.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from hookline.checkpoint import names, shards
from hookline.checkpoint.agreement import agreed, by_zero
from hookline.checkpoint.commit import Commit, free_bytes, open_folder
from hookline.checkpoint.hashed_file import FileRecord, write_file
from hookline.checkpoint.inspect import Checkpoint
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.prepared import Prepared, prepare
from hookline.checkpoint.snapshot import Snapshot
from hookline.checkpoint.tensor_file import lay_out
from hookline.distributed.dtensors import is_spread, part_of
from hookline.distributed.solo import AnyGroup
from hookline.errors import CheckpointWriteError

_CHUNK_BYTES: Final = 512
"""Approximate bytes per chunk in the index and in the header of a shard."""


def save_together(folder: Path, snapshot: Snapshot, name: str | None, group: AnyGroup) -> Checkpoint:
    """Save a snapshot with sharded tensors on all ranks; see ``Store.save``."""
    sharded: dict[str, Tensor] = {}
    ready: list[Prepared] = []

    def get_ready() -> list[Any]:
        ready.append(prepare(snapshot, sharded))
        return [ready[0].size, shards.describe(sharded)]

    told = agreed(group, get_ready)
    tensors = shards.plan_chunks([described for _, described in told])
    needed = told[0][0] + sum(its.nbytes + len(its.chunks) * _CHUNK_BYTES for its in tensors.values())
    own = names.shard_name(group.rank)
    chunks = {name: part_of(sharded[name]) for name, its in tensors.items() if own in {c.file for c in its.chunks}}
    with ExitStack() as stack:
        begun: list[tuple[Commit, bytes]] = []

        def begin() -> str:
            index = shards.index_to_bytes(tensors)
            begun.append((stack.enter_context(Commit(folder, ready[0].name(name), needed)), index))
            return str(begun[0][0].folder)

        temporary = Path(by_zero(group, begin))
        records = agreed(group, lambda: write_shard(temporary, own, chunks, needed))
        files = {names.shard_name(rank): FileRecord(*record) for rank, record in enumerate(records)}
        found = by_zero(group, lambda: _publish(*begun[0], ready[0], files))
    path = Path(found[0])
    return Checkpoint(path, Manifest.from_bytes(found[1].encode(), str(path / names.MANIFEST)))


def write_shard(folder: Path, file: str, chunks: Mapping[str, Tensor], needed: int) -> list[Any]:
    """Write this rank's chunks into the folder of rank zero, and return the size and SHA-256."""
    try:
        if not folder.is_dir():
            hint = "this rank does not see the folder that rank zero created. All ranks need a shared file system"
            raise FileNotFoundError(errno.ENOENT, hint)
        directory = open_folder(folder)
        try:
            record = write_file(file, lay_out(chunks, tie=False).parts(), directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CheckpointWriteError(str(folder / file), error, needed=needed, free=free_bytes(folder)) from error
    return [record.size, record.sha256]


def _publish(writing: Commit, index: bytes, ready: Prepared, files: dict[str, FileRecord]) -> list[str]:
    """Write the unsharded files, the index and the manifest on rank zero, and rename the folder."""
    own = {file: writing.write(file, parts()) for file, parts in ready.files.items()}
    own[names.SHARD_INDEX] = writing.write(names.SHARD_INDEX, [index])
    manifest = Manifest(ready.about, MappingProxyType({**own, **files}), time.time())
    data = manifest.to_bytes()
    return [str(writing.finish(data)), data.decode()]


def is_shared(snapshot: Snapshot) -> bool:
    """Return True if a weight is sharded over ranks, so that all ranks have to write."""
    return any(map(is_spread, snapshot.weights.values()))
