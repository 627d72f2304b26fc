"""What ranks have written, read by however many there are now: each reads the parts that it needs, and no more.

Torch plans which parts are needed for what; the index and the bytes are read here, where no code of a file is run.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from hookline.checkpoint import names
from hookline.checkpoint.hashed_file import FileRecord, HashedReader, open_regular
from hookline.checkpoint.prepared import STATE, WEIGHTS
from hookline.checkpoint.shard_index import MAX_BYTES, Part, Room, SpreadTensor, read_index
from hookline.errors import CheckpointCorruptError

_ALL: Final = (0, 1)


class ShardReader:
    """The files of the ranks in one checkpoint's folder, which is open."""

    def __init__(self, path: str, folder: int, files: Mapping[str, FileRecord]) -> None:
        self._path, self._folder = path, folder
        self._files = {name: record for name, record in files.items() if names.is_shard(name)}
        self._open: dict[str, int] = {}
        where = f"{path}/{names.SHARD_INDEX}"
        with HashedReader(where, names.SHARD_INDEX, folder, files[names.SHARD_INDEX]) as file:
            data = file.read(min(file.size, MAX_BYTES + 1))
            file.finish()
        self.tensors: dict[str, SpreadTensor] = read_index(data, self._files, where)
        """What there is, by name."""

    def verify(self, share: tuple[int, int] = _ALL) -> None:
        """Compare hashes with the manifest's: of all files, or of the share ``(which, of how many)`` of them."""
        which, count = share
        for name in sorted(self._files)[which::count]:
            with HashedReader(f"{self._path}/{name}", name, self._folder, self._files[name]) as file:
                file.finish()

    def read(self, wanted: Iterable[str], room: Room | None = None) -> dict[str, Tensor]:
        """Tensors by name, each into the room that there is for it; whole ones on the CPU where there is none."""
        targets: dict[str, Tensor] = {}
        for name in wanted:
            found = self.tensors[name]
            given = None if room is None else room(name, found.shape, found.dtype)
            targets[name] = torch.empty(found.shape, dtype=found.dtype) if given is None else given
        if not targets:
            return {}
        planner = _planner(targets, self.tensors)
        for item in planner.create_local_plan().items:
            index = item.storage_index
            tensor = self.tensors[index.fqn]
            part = next(part for part in tensor.parts if part.offsets == tuple(index.offset))
            values = self._part(tensor, part)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                values = values.narrow(dimension, start, length)
            planner.resolve_tensor(item).detach().copy_(values)
        return targets

    def _part(self, tensor: SpreadTensor, part: Part) -> Tensor:
        """One part, as it was saved: the values of a ``torch.save``, and nothing else."""
        path, what = f"{self._path}/{part.file}", f"a part of {tensor.name[:100]!r}"
        data = self._bytes(part, path)
        if problem := _not_plain(data):
            raise CheckpointCorruptError(path, f"{what} {problem}")
        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and torch each have errors of their own
            reason = f"{what} cannot be read: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            raise CheckpointCorruptError(path, reason) from error
        if not isinstance(found, Tensor) or found.dtype != tensor.dtype or tuple(found.shape) != part.sizes:
            raise CheckpointCorruptError(path, f"{what} is not what the index says of it")
        return found

    def _bytes(self, part: Part, path: str) -> bytes:
        if part.file not in self._open:
            self._open[part.file] = open_regular(path, part.file, self._folder)
        found, data = self._open[part.file], bytearray()
        while len(data) < part.length:
            try:
                more = os.pread(found, part.length - len(data), part.begin + len(data))
            except OSError as error:
                raise CheckpointCorruptError(path, f"it cannot be read: {error.strerror}") from error
            if not more:
                raise CheckpointCorruptError(path, "it ends too early; another process is changing it")
            data += more
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()


def read_spread(
    path: str,
    folder: int,
    files: Mapping[str, FileRecord],
    room: Room | None = None,
    share: tuple[int, int] = _ALL,
    *,
    weights_only: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What ranks have written: the weights, and the tensors of the state, by their own names."""
    with ShardReader(path, folder, files) as shards:
        for name in shards.tensors:
            if not name.startswith((WEIGHTS, STATE)):
                where = f"{path}/{names.SHARD_INDEX}"
                raise CheckpointCorruptError(where, f"{name[:100]!r} is neither of the weights nor of the state")
        shards.verify(share)
        found = shards.read([name for name in shards.tensors if name.startswith(WEIGHTS) or not weights_only], room)
    weights = {name.removeprefix(WEIGHTS): value for name, value in found.items() if name.startswith(WEIGHTS)}
    state = {name.removeprefix(STATE): value for name, value in found.items() if name.startswith(STATE)}
    return weights, state


def _planner(targets: dict[str, Tensor], tensors: Mapping[str, SpreadTensor]) -> Any:
    """Torch's plan of what to read for these targets, from an index that was made here."""
    from torch.distributed.checkpoint import metadata as torch_metadata
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    entries: Any = {
        name: torch_metadata.TensorStorageMetadata(
            torch_metadata.TensorProperties(tensors[name].dtype),
            torch.Size(tensors[name].shape),
            [
                torch_metadata.ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
                for part in tensors[name].parts
            ],
        )
        for name in targets
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(targets, torch_metadata.Metadata(entries), is_coordinator=True)
    return planner


def _not_plain(data: bytes) -> str:
    """Why these bytes are no plain ``torch.save`` of a tensor; one that is packed may take memory without end."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            entries = file.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        return f"is no file of torch.save: {error}"
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries):
        return "is packed, which torch.save never does"
    if sum(entry.file_size for entry in entries) > len(data):
        return "claims more bytes than it has"
    return ""
