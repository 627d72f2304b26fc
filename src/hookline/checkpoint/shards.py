"""Plan which rank writes which chunk of a sharded tensor, and index the chunks.

Each rank writes ``shard-NNNNN.safetensors``. The index lists the dtype, shape and chunks of each tensor, and the file
of each chunk. The file holds the chunk under the tensor's name. The chunks of a tensor form a grid, as those of
every ``DTensor`` do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from hookline.checkpoint import names, strict_json, tensor_bytes
from hookline.checkpoint.hashed_file import FileRecord
from hookline.checkpoint.prepared import STATE, WEIGHTS
from hookline.checkpoint.tensor_file import read_sizes
from hookline.distributed.dtensors import is_spread, part_of
from hookline.errors import CheckpointCorruptError, StateError

FORMAT: Final = 1
MAX_INDEX_BYTES: Final = 256 * 2**20
"""Maximum size of the index: about three million chunks."""
_MAX_INDEX_PARTS: Final = MAX_INDEX_BYTES // 8
_Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of a tensor from ``offsets`` to ``offsets + sizes``, in the file of one rank."""

    offsets: _Sizes
    sizes: _Sizes
    file: str


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor that is saved in chunks."""

    dtype: torch.dtype
    shape: _Sizes
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_complete(self) -> bool:
        """Return True if the chunks are a grid that covers the shape without gaps or overlaps.

        >>> chunks = Chunk((0, 0), (2, 3), "a"), Chunk((2, 0), (1, 3), "b")
        >>> ShardedTensor(torch.float32, (3, 3), chunks).is_complete()
        True
        >>> ShardedTensor(torch.float32, (4, 3), chunks).is_complete()
        False
        """
        if 0 in self.shape:
            return not self.chunks
        cells = 1
        for dimension, size in enumerate(self.shape):
            ranges = sorted({(chunk.offsets[dimension], chunk.sizes[dimension]) for chunk in self.chunks})
            edges = [0, *(offset + length for offset, length in ranges)]
            if [offset for offset, _ in ranges] != edges[:-1] or edges[-1] != size:
                return False
            cells *= len(ranges)
        return cells == len(self.chunks) == len({chunk.offsets for chunk in self.chunks})


def local_chunk(tensor: Tensor) -> tuple[_Sizes, _Sizes] | None:
    """Return offsets and sizes of the chunk on this rank, or ``None`` if it is empty."""
    offsets, sizes = (0,) * tensor.ndim, tuple(tensor.shape)
    if is_spread(tensor):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as compute

        held: Any = tensor
        sizes, offsets = compute(held.shape, held.device_mesh, held.placements)
    return None if 0 in sizes else (tuple(offsets), tuple(sizes))


# -- saving ------------------------------------------------------------------------------------------


def describe(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return dtype, shape and local chunk of each tensor, as values that ranks can exchange.

    Raises:
        StateError: If a tensor cannot be saved.
    """
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        held: Any = tensor
        local, chunk = part_of(tensor), local_chunk(tensor)
        problem = tensor_bytes.refusal(local)
        if any(placement.is_partial() for placement in held.placements):
            problem = "a DTensor with Partial() placements is not reduced yet. Call redistribute() first."
        elif chunk is not None and chunk[1] != tuple(local.shape):
            problem = f"the local shard has the shape {list(local.shape)}, but the placements say {list(chunk[1])}."
        if problem:
            raise StateError(f"{name}: {problem}")
        found[name] = [_dtype_name(tensor), list(tensor.shape), chunk]
    return found


def plan_chunks(described: Sequence[Mapping[str, Any]]) -> dict[str, ShardedTensor]:
    """Return all tensors with the file of each chunk, the same on all ranks.

    If several ranks hold a chunk, the one with the fewest bytes to write so far writes it.

    Args:
        described: The results of ``describe`` on all ranks, by rank.

    Raises:
        StateError: If the ranks hold different tensors under one name, or do not hold all of a tensor.
    """
    kinds: dict[str, Any] = {}
    holders: dict[tuple[str, _Sizes, _Sizes], list[int]] = {}
    for rank, tensors in enumerate(described):
        for name, (*kind, chunk) in tensors.items():
            if kinds.setdefault(name, kind) != kind:
                raise StateError(f"{name}: rank {rank} has {_shown(kind)}, another rank has {_shown(kinds[name])}.")
            if chunk is not None:
                holders.setdefault((name, tuple(chunk[0]), tuple(chunk[1])), []).append(rank)
    width = {name: tensor_bytes.DTYPES[kind[0]].itemsize for name, kind in kinds.items()}
    size = {key: math.prod(key[2]) * width[key[0]] for key in holders}
    load = [0] * len(described)
    chunks: dict[str, list[Chunk]] = {name: [] for name in kinds}
    only = [key for key, ranks in holders.items() if len(ranks) == 1]
    shared = [key for key, ranks in holders.items() if len(ranks) > 1]
    shared.sort(key=lambda key: (-size[key], key))  # The largest first, which balances the load.
    for key in (*only, *shared):
        writer = min(holders[key], key=load.__getitem__)
        load[writer] += size[key]
        chunks[key[0]].append(Chunk(key[1], key[2], names.shard_name(writer)))
    found = {}
    for name, (dtype, shape) in kinds.items():
        ordered = tuple(sorted(chunks[name], key=lambda chunk: chunk.offsets))
        found[name] = ShardedTensor(tensor_bytes.DTYPES[dtype], tuple(shape), ordered)
        if not found[name].is_complete():
            reason = f"the shards of the ranks are not a grid that covers its shape {shape}"
            raise StateError(f"{name}: {reason}. Save its full_tensor() instead.")
    return found


def _shown(kind: Sequence[Any]) -> str:
    return f"a tensor of {kind[0]} {kind[1]}"


def index_to_bytes(tensors: Mapping[str, ShardedTensor]) -> bytes:
    """Return the content of ``shards.json``.

    An index above the size limit raises ``StateError``.
    """
    entries = {
        name: {
            "dtype": _dtype_name(tensor),
            "shape": tensor.shape,
            "chunks": [{"offsets": its.offsets, "sizes": its.sizes, "file": its.file} for its in tensor.chunks],
        }
        for name, tensor in tensors.items()
    }
    data = json.dumps({"format": FORMAT, "tensors": entries}, separators=(",", ":")).encode()
    if problem := strict_json.too_large(data, max_bytes=MAX_INDEX_BYTES, max_parts=_MAX_INDEX_PARTS):
        raise StateError(f"The index of {len(tensors):,} sharded tensors is too large ({problem}). Join small tensors.")
    return data


def _dtype_name(tensor: Tensor | ShardedTensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# -- loading -----------------------------------------------------------------------------------------


def read_index(data: bytes, files: Mapping[str, FileRecord], path: str) -> dict[str, ShardedTensor]:
    """Return the tensors of an index by name.

    Args:
        data: The content of ``shards.json``.
        files: Sizes of the files that chunks may be in, by name.
        path: Path of the index, for errors.

    Raises:
        CheckpointCorruptError: If the index is not complete, or its chunks do not fit into the files.
    """
    body = strict_json.parse(data, path, max_bytes=MAX_INDEX_BYTES, max_parts=_MAX_INDEX_PARTS)
    if not isinstance(body, dict) or body.keys() != {"format", "tensors"} or not isinstance(body["tensors"], dict):
        raise CheckpointCorruptError(path, "it is not an index of sharded tensors")
    if body["format"] != FORMAT or type(body["format"]) is not int:
        hint = "use the version of Hookline that wrote it, or a later one"
        raise CheckpointCorruptError(path, f"format {str(body['format'])[:50]} is unknown; {FORMAT} is known", hint)
    found = {name: _read_tensor(name, entry, files, path) for name, entry in body["tensors"].items()}
    claimed = dict.fromkeys(files, 0)
    for tensor in found.values():
        for chunk in tensor.chunks:
            claimed[chunk.file] += math.prod(chunk.sizes) * tensor.dtype.itemsize
    for file, size in claimed.items():
        if size > files[file].size:
            raise CheckpointCorruptError(path, f"its chunks claim {size:,} bytes of {file}, which is smaller")
    return found


def _read_tensor(name: str, entry: Any, files: Mapping[str, FileRecord], path: str) -> ShardedTensor:
    what = f"tensor {name[:100]!r}"
    if not name.startswith((WEIGHTS, STATE)):
        raise CheckpointCorruptError(path, f"{what} belongs neither to the weights nor to the state")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "chunks"}:
        raise CheckpointCorruptError(path, f"{what} must have dtype, shape and chunks, and nothing else")
    dtype, chunks = tensor_bytes.dtype_named(entry["dtype"]), entry["chunks"]
    if dtype is None:
        raise CheckpointCorruptError(path, f"{what} has the unknown dtype {str(entry['dtype'])[:50]!r}")
    if not isinstance(chunks, list):
        raise CheckpointCorruptError(path, f"the chunks of {what} are not a list")
    shape = tuple(read_sizes(entry["shape"], f"the shape of {what}", path))
    found = ShardedTensor(dtype, shape, tuple(_read_chunk(chunk, what, len(shape), files, path) for chunk in chunks))
    if not found.is_complete():
        raise CheckpointCorruptError(path, f"the chunks of {what} are not a grid that covers its shape {list(shape)}")
    if len({chunk.file for chunk in found.chunks}) < len(chunks):  # A file holds one chunk per name.
        raise CheckpointCorruptError(path, f"two chunks of {what} are in one file")
    return found


def _read_chunk(entry: Any, what: str, dimensions: int, files: Mapping[str, FileRecord], path: str) -> Chunk:
    if not isinstance(entry, dict) or entry.keys() != {"offsets", "sizes", "file"}:
        raise CheckpointCorruptError(path, f"a chunk of {what} must have offsets, sizes and file, and nothing else")
    offsets, sizes = (
        tuple(read_sizes(entry[key], f"{key} of a chunk of {what}", path, count=dimensions))
        for key in ("offsets", "sizes")
    )
    if 0 in sizes:
        raise CheckpointCorruptError(path, f"a chunk of {what} is empty")
    if not isinstance(entry["file"], str) or entry["file"] not in files:
        reason = f"a chunk of {what} is in {str(entry['file'])[:100]!r}, which is not a shard of this checkpoint"
        raise CheckpointCorruptError(path, reason)
    return Chunk(offsets, sizes, entry["file"])
