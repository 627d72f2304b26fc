"""Write the weights of any checkpoint, sharded or not, as one safetensors file."""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hookline.checkpoint import names, tensor_bytes
from hookline.checkpoint.commit import free_bytes, open_folder, sync_folder
from hookline.checkpoint.hashed_file import FileRecord, HashedReader, write_file
from hookline.checkpoint.inspect import Checkpoint, opened
from hookline.checkpoint.prepared import WEIGHTS
from hookline.checkpoint.shard_reader import ShardReader
from hookline.checkpoint.shards import ShardedTensor
from hookline.checkpoint.tensor_file import lay_out, read_tensors
from hookline.errors import CheckpointWriteError, SetupError


@dataclass(frozen=True, slots=True)
class Consolidated:
    """Path, number of tensors and size in bytes of the file that was written."""

    path: Path
    tensors: int
    size: int


def consolidate(checkpoint: Checkpoint, path: Path, *, force: bool = False) -> Consolidated:
    """Write the weights of a checkpoint to one safetensors file.

    At most one sharded tensor is in memory at a time. The hashes are verified before anything is written. The file
    gets its name when it is complete.

    Args:
        checkpoint: The checkpoint to read.
        path: Path of the file to write. It must end in ``.safetensors``.
        force: Replace an existing file.

    Raises:
        SetupError: If ``path`` is not usable, or safetensors does not support the dtype of a weight.
        CheckpointCorruptError: If the checkpoint is damaged.
        CheckpointWriteError: If the file cannot be written.
    """
    path = path.absolute()
    if path.suffix != ".safetensors":
        raise SetupError(f"{path} must end in .safetensors. Name it '{path.stem}.safetensors'.")
    if path.is_dir() or (os.path.lexists(path) and not force):
        hint = "It is a folder." if path.is_dir() else "Give another name, or --force to replace it."
        raise SetupError(f"{path} already exists. {hint}")
    if path.parent == checkpoint.path:
        raise SetupError(f"{path} is inside the checkpoint, which would make it invalid. Give another folder.")
    files = checkpoint.manifest.files
    with opened(checkpoint.path) as folder:
        where = str(checkpoint.path / names.MODEL)
        with HashedReader(where, names.MODEL, folder, files[names.MODEL]) as file:
            plain = read_tensors(file)
            file.finish()
        if not checkpoint.is_sharded:
            layout = lay_out(plain)
            return _write(path, layout.parts(), layout.size, len(plain))
        with ShardReader(str(checkpoint.path), folder, files) as shards:
            shards.verify()
            head, order, size = _header(plain, shards)
            return _write(path, _parts(head, order, plain, shards), size, len(order))


def _header(plain: dict[str, Tensor], shards: ShardReader) -> tuple[bytes, list[str], int]:
    """Return the header of the file, the names in the order of the file, and the file size."""
    kinds = {name.removeprefix(WEIGHTS): its for name, its in shards.tensors.items() if name.startswith(WEIGHTS)}
    both: dict[str, Tensor | ShardedTensor] = {**kinds, **plain}
    order = sorted(both, key=lambda name: (-both[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor, start = both[name], end
        end += tensor.nbytes
        if tensor.dtype not in tensor_bytes.STORED_AS:
            raise SetupError(
                f"{name} has the dtype {tensor.dtype}, which safetensors does not support. Load the checkpoint itself."
            )
        stored = tensor_bytes.STORED_AS[tensor.dtype]
        entries[name] = {"dtype": stored, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return head, order, len(head) + end


def _parts(
    head: bytes, order: list[str], plain: dict[str, Tensor], shards: ShardReader
) -> Iterator[bytes | memoryview]:
    yield head
    for name in order:
        key = f"{WEIGHTS}{name}"
        tensor = plain[name] if name in plain else shards.read([key])[key]
        yield tensor_bytes.memory(tensor_bytes.on_cpu_in_order(tensor))


def _write(path: Path, parts: Iterator[bytes | memoryview], size: int, count: int) -> Consolidated:
    temporary = f".{path.name[:100]}.tmp-{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = open_folder(path.parent.resolve())
        try:
            record: FileRecord = write_file(temporary, parts, folder)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            if temporary in os.listdir(folder):
                os.unlink(temporary, dir_fd=folder)
            raise
        finally:
            os.close(folder)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointWriteError(str(path), error, needed=size, free=free_bytes(path.parent)) from error
    return Consolidated(path, count, record.size)
