"""Sharded checkpoints as ranks write them; one process stands in for all ranks."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from hookline.checkpoint import About, Manifest, Snapshot, Store
from hookline.checkpoint.hashed_file import FileRecord, HashedReader
from hookline.checkpoint.names import shard_name
from hookline.checkpoint.shards import index_to_bytes, plan_chunks
from hookline.checkpoint.together import write_shard

ABOUT = About(step=5, epoch=0, batch=5, sample=5, seconds=1.0, run="demo")
INDEX, SHARD = "shards.json", "shard-00000.safetensors"


def record(path: Path) -> FileRecord:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with HashedReader(str(path), path.name, folder) as file:
            file.finish()
            return FileRecord(file.size, file._digest.hexdigest())
    finally:
        os.close(folder)


def seal(folder: Path) -> None:
    """Hashes that fit what is there now: the manifest does not stand in the way of whoever changed it."""
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    files = MappingProxyType({name: record(folder / name) for name in sorted(names)})
    (folder / "manifest.json").write_bytes(Manifest(ABOUT, files, 1.0).to_bytes())


def cut(tensor: Tensor, cuts: Sequence[int]) -> list[tuple[tuple[int, ...], Tensor]]:
    """The cells of a grid with so many of them in each dimension, and where each begins."""
    ranges = []
    for size, count in zip(tensor.shape, cuts, strict=True):
        step = max(1, -(-size // count))
        ranges.append([(at, min(step, size - at)) for at in range(0, size, step)])
    found = []
    for cell in itertools.product(*ranges):
        part = tensor
        for dimension, (start, length) in enumerate(cell):
            part = part.narrow(dimension, start, length)
        found.append((tuple(start for start, _ in cell), part))
    return found


def write_shards(folder: Path, tensors: Mapping[str, tuple[Tensor, Sequence[int]]], ranks: int) -> None:
    """The shards and the index. Each tensor is cut as given; cells go to the ranks in turn."""
    described: list[dict[str, Any]] = [{} for _ in range(ranks)]
    held: list[dict[str, Tensor]] = [{} for _ in range(ranks)]
    for name, (tensor, cuts) in tensors.items():
        kind = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        cells = cut(tensor, cuts)
        for rank in range(ranks):
            described[rank][name] = [*kind, None]
        for rank, (offsets, part) in enumerate(cells):
            described[rank][name] = [*kind, [list(offsets), list(part.shape)]]
            held[rank][name] = part
    for rank in range(ranks):
        write_shard(folder, shard_name(rank), held[rank], 0)
    (folder / INDEX).write_bytes(index_to_bytes(plan_chunks(described)))


def save_sharded(
    folder: Path, plain: Mapping[str, Tensor], tensors: Mapping[str, tuple[Tensor, Sequence[int]]], ranks: int = 2
) -> Path:
    """A checkpoint with weights that every rank has, and tensors that are cut over ranks."""
    path = Store(folder).save(Snapshot(ABOUT, plain, {"lr": 0.1})).path
    write_shards(path, tensors, ranks)
    seal(path)
    return path


def index_of(folder: Path) -> Any:
    return json.loads((folder / INDEX).read_bytes())


def put_index(folder: Path, index: Any) -> None:
    (folder / INDEX).write_bytes(index if isinstance(index, bytes) else json.dumps(index).encode())
    seal(folder)
