"""Read sharded tensors with any number of ranks: each rank reads the slices it needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self, TypeAlias

import torch
from torch import Tensor

from hookline.checkpoint import names, tensor_bytes
from hookline.checkpoint.hashed_file import FileRecord, HashedReader
from hookline.checkpoint.prepared import STATE, WEIGHTS
from hookline.checkpoint.shards import MAX_INDEX_BYTES, Chunk, ShardedTensor, local_chunk, read_index
from hookline.checkpoint.tensor_file import Place, read_header
from hookline.distributed.dtensors import part_of
from hookline.errors import CheckpointCorruptError

Room: TypeAlias = Callable[[str, tuple[int, ...], torch.dtype], Tensor | None]
"""Returns the tensor to read into, by name, shape and dtype; ``None`` for a new full tensor."""
_ALL: Final = (0, 1)
_PAGE_BYTES: Final = 4096
"""Shorter runs of bytes are read with the gaps between them: a disk reads full pages anyway."""


class ShardReader:
    """The shards in the open folder of a checkpoint.

    Args:
        path: Path of the checkpoint, for errors.
        folder: File descriptor of its folder.
        files: The files in its manifest.

    Raises:
        CheckpointCorruptError: If the index is damaged.
    """

    def __init__(self, path: str, folder: int, files: Mapping[str, FileRecord]) -> None:
        self._path, self._folder = path, folder
        self._files = {name: record for name, record in files.items() if names.is_shard(name)}
        self._open: dict[str, tuple[HashedReader, dict[str, Place]]] = {}
        self._stack = ExitStack()
        where = f"{path}/{names.SHARD_INDEX}"
        with HashedReader(where, names.SHARD_INDEX, folder, files[names.SHARD_INDEX]) as file:
            data = file.read(min(file.size, MAX_INDEX_BYTES + 1))
            file.finish()
        self.tensors: dict[str, ShardedTensor] = read_index(data, self._files, where)
        """The tensors of the index, by name."""

    def verify(self, share: tuple[int, int] = _ALL) -> None:
        """Compare the hashes of shards with the manifest.

        Args:
            share: Which fraction of the files, such as ``(0, 2)`` for the first half. All of them by default.
        """
        which, count = share
        for name in sorted(self._files)[which::count]:
            with HashedReader(f"{self._path}/{name}", name, self._folder, self._files[name]) as file:
                file.finish()

    def read(self, wanted: Iterable[str], room: Room | None = None) -> dict[str, Tensor]:
        """Return tensors by name: each read into its ``room``, or a full tensor on the CPU."""
        found = {}
        for name in wanted:
            tensor = self.tensors[name]
            target = None if room is None else room(name, tensor.shape, tensor.dtype)
            found[name] = self._full(name, tensor) if target is None else target
            self._fill(found[name], name, tensor)
        return found

    def _full(self, name: str, tensor: ShardedTensor) -> Tensor:
        data = torch.empty(tensor.nbytes, dtype=torch.uint8)  # At most the size of the files: read_index() checked it.
        try:
            return tensor_bytes.from_bytes(data, tensor.dtype, tensor.shape, None)
        except (RuntimeError, TypeError, OverflowError) as error:
            where = f"{self._path}/{names.SHARD_INDEX}"
            raise CheckpointCorruptError(where, f"tensor {name[:100]!r} cannot be created: {error}") from error

    def _fill(self, target: Tensor, name: str, tensor: ShardedTensor) -> None:
        """Read the local chunk of a target from the chunks that overlap it."""
        region = local_chunk(target)
        if region is None:
            return
        local = tensor_bytes.as_bits(part_of(target))
        for chunk in tensor.chunks:
            starts = [max(pair) for pair in zip(region[0], chunk.offsets, strict=True)]
            boxes = zip(starts, *region, chunk.offsets, chunk.sizes, strict=True)
            counts = [min(a + n, b + m) - start for start, a, n, b, m in boxes]
            if min(counts, default=1) > 0:
                into = local
                for dimension, (start, first, count) in enumerate(zip(starts, region[0], counts, strict=True)):
                    into = into.narrow(dimension, start - first, count)
                inside = [start - offset for start, offset in zip(starts, chunk.offsets, strict=True)]
                into.copy_(self._slice(name, tensor.dtype, chunk, inside, counts))

    def _slice(
        self, name: str, dtype: torch.dtype, chunk: Chunk, starts: Sequence[int], counts: Sequence[int]
    ) -> Tensor:
        """Read ``counts`` elements per dimension of a chunk, from ``starts``.

        The elements are integers of the dtype's width.

        From the last dimension that is cut, the bytes of a slice are contiguous in the file.
        """
        file, begin = self._entry(name, dtype, chunk)
        shape, starts, counts = (1, *chunk.sizes), (0, *starts), (1, *counts)
        strides = [math.prod(shape[dimension + 1 :]) * dtype.itemsize for dimension in range(len(shape))]
        cut = max((dimension for dimension in range(len(shape)) if counts[dimension] < shape[dimension]), default=0)
        while cut and counts[cut] * strides[cut] < _PAGE_BYTES:
            cut -= 1
        run = counts[cut] * strides[cut]
        data = torch.empty(math.prod(counts[:cut]) * run, dtype=torch.uint8)
        view = tensor_bytes.memory(data)
        outer = (range(start, start + count) for start, count in zip(starts[:cut], counts[:cut], strict=True))
        for number, index in enumerate(itertools.product(*outer)):
            position = sum(at * stride for at, stride in zip((*index, starts[cut]), strides, strict=False))
            file.read_at(begin + position, view[number * run : (number + 1) * run])
        found = tensor_bytes.from_bytes(data, dtype, (*counts[: cut + 1], *shape[cut + 1 :]), None)
        for dimension in range(cut + 1, len(shape)):
            found = found.narrow(dimension, starts[dimension], counts[dimension])
        return tensor_bytes.as_bits(found[0])

    def _entry(self, name: str, dtype: torch.dtype, chunk: Chunk) -> tuple[HashedReader, int]:
        """Return the file of a chunk, and the position of the chunk in it."""
        path = f"{self._path}/{chunk.file}"
        if chunk.file not in self._open:
            opened = HashedReader(path, chunk.file, self._folder, self._files[chunk.file])
            places = read_header(self._stack.enter_context(opened))[0]
            self._open[chunk.file] = opened, {place.name: place for place in places}
        file, found = self._open[chunk.file]
        place = found.get(name)
        if place is None or place.dtype != dtype or tuple(place.shape) != chunk.sizes:
            have = "does not have it" if place is None else f"has {place.dtype} {place.shape}"
            reason = f"{names.SHARD_INDEX} lists {name[:100]!r} of {dtype} {list(chunk.sizes)}, but the file {have}"
            raise CheckpointCorruptError(path, reason)
        return file, file.size - file.left + place.begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def read_sharded(
    path: str,
    folder: int,
    files: Mapping[str, FileRecord],
    room: Room | None = None,
    share: tuple[int, int] = _ALL,
    *,
    weights_only: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the sharded weights and the other sharded tensors, by name; see ``ShardReader``."""
    with ShardReader(path, folder, files) as shards:
        shards.verify(share)
        found = shards.read([name for name in shards.tensors if name.startswith(WEIGHTS) or not weights_only], room)
    weights = {name.removeprefix(WEIGHTS): value for name, value in found.items() if name.startswith(WEIGHTS)}
    state = {name.removeprefix(STATE): value for name, value in found.items() if name.startswith(STATE)}
    return weights, state
