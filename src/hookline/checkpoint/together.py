"""One checkpoint by all ranks: each writes its parts, and it is there whole or not at all, on all of them.

Rank zero makes the new folder and tells its name; every rank writes, syncs and hashes its file in it; all tell how that
went. If one has failed, all raise the same error and rank zero removes the folder. Else it adds what is not spread and
the manifest, renames the folder, and tells all. No rank raises alone in between.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from hookline.checkpoint import names
from hookline.checkpoint.agreement import agreed, by_zero
from hookline.checkpoint.commit import Commit
from hookline.checkpoint.hashed_file import FileRecord
from hookline.checkpoint.inspect import Checkpoint
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.prepared import Prepared, prepare
from hookline.checkpoint.snapshot import Snapshot
from hookline.distributed import Group
from hookline.distributed.dtensors import is_spread, part_of


def save_together(folder: Path, snapshot: Snapshot, name: str | None, group: Group) -> Checkpoint:
    """By all ranks, with tensors in the snapshot that are spread over them; see ``Store.save``."""
    spread: dict[str, Tensor] = {}
    ready: list[Prepared] = []

    def get_ready() -> list[int]:
        ready.append(prepare(snapshot, spread))
        return [ready[0].size if group.rank == 0 else 0, sum(part_of(tensor).nbytes for tensor in spread.values())]

    needed = sum(map(sum, agreed(group, get_ready)))
    with ExitStack() as stack:
        begun: list[Commit] = []

        def begin() -> str:
            begun.append(stack.enter_context(Commit(folder, ready[0].name(name), needed)))
            return str(begun[0].folder)

        temporary = Path(by_zero(group, begin))
        files = _write(temporary, spread, group, needed)
        found = by_zero(group, lambda: _publish(begun[0], ready[0], files))
    path = Path(found[0])
    return Checkpoint(path, Manifest.from_bytes(found[1].encode(), str(path / names.MANIFEST)))


def _write(temporary: Path, spread: dict[str, Tensor], group: Group, needed: int) -> dict[str, FileRecord]:
    """By all: the files of the ranks, by name."""
    from hookline.checkpoint.shard_writer import write_shards  # it needs what only several processes have

    own: dict[str, FileRecord] = {}

    def write() -> list[list[Any]]:
        return [[file, record.size, record.sha256] for file, record in own.items()]

    own.update(write_shards(temporary, spread, group, needed))
    told = agreed(group, write)
    return {file: FileRecord(size, digest) for said in told for file, size, digest in said}


def _publish(writing: Commit, ready: Prepared, files: dict[str, FileRecord]) -> list[str]:
    """Rank zero: what is not spread, then the manifest, then the name."""
    own = {file: writing.write(file, parts()) for file, parts in ready.files.items()}
    manifest = Manifest(ready.about, MappingProxyType({**own, **files}), time.time())
    data = manifest.to_bytes()
    return [str(writing.finish(data)), data.decode()]


def is_shared(snapshot: Snapshot) -> bool:
    """Whether something in the weights is spread over ranks, so that all of them have to write."""
    return any(map(is_spread, snapshot.weights.values()))
