"""Write and read files in the safetensors format, with their hash in the same pass.

``safetensors.torch.save_file`` is not used because it hides the ``errno`` of an error (a full disk looks like a bug),
writes its own temporary file, refuses shared tensors, and would need a second pass for the hash. The format is equal:
``safetensors.torch.load_file`` and other tools can read the files.

- Equal views of the same memory (tied weights) are written once. The metadata maps the other names to the name that
  was written, as ``safetensors.torch.save_model`` does. ``read_tensors`` returns all names, and they share memory
  again. Tensors that overlap in part are written separately and no longer share memory.
- A dtype that safetensors does not support (complex128, int4, …) is stored as bytes, with one more dimension for the
  bytes of an element. The metadata has the name of the dtype.
- Values are contiguous in the file. The metadata has the strides of other dense layouts, such as channels last, and
  ``read_tensors`` restores them.
- ``read_tensors`` returns plain tensors on the CPU without gradient. Names keep their order, with tied names last.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from hookline.checkpoint import strict_json, tensor_bytes
from hookline.errors import CheckpointCorruptError, StateError

MAX_HEADER: Final = 64 * 2**20
"""Largest header in bytes: enough for about 250,000 tensors."""
MAX_DIMENSIONS: Final = 64
_LARGEST: Final = 2**62
_METADATA: Final = "__metadata__"
_OURS: Final = "hookline"
_FORMAT: Final = "format"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a file of tensors before it is written. No tensor has been copied yet."""

    header: bytes
    tensors: tuple[Tensor, ...]
    """The tensors in the order of the file."""
    size: int
    """Size of the file in bytes."""

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the content of the file.

        Only tensors on another device or not contiguous are copied, one at a time.
        """
        yield self.header
        for tensor in self.tensors:
            yield tensor_bytes.memory(tensor_bytes.on_cpu_in_order(tensor))


def lay_out(tensors: Mapping[str, Tensor], where: str = "", *, tie: bool = True) -> Layout:
    """Assign each tensor a position in a file.

    Args:
        tensors: The tensors by name.
        where: Prefix of the names in errors.
        tie: Write tied weights once. Otherwise write them once per name.

    Raises:
        StateError: If a tensor cannot be saved.

    Example:
        >>> weight = torch.zeros(2, 3)
        >>> lay_out({"embed.weight": weight, "head.weight": weight}).size - len(lay_out({}).header) > 24
        True
    """
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        if problem := _problem(name, tensor):
            raise StateError(f"{where}{name}: {problem}")
        key = tensor_bytes.identity(tensor) if tie else None
        first = name if key is None else seen.setdefault(key, name)
        if first == name:
            kept[name] = tensor
        else:
            aliases[name] = first
    # The widest dtypes first, so that each tensor is aligned to its element size, as other readers require.
    order = sorted(kept, key=lambda name: -kept[name].dtype.itemsize)
    places, end = {}, 0
    for name in order:
        places[name] = [end, end + kept[name].nbytes]
        end += kept[name].nbytes
    header: dict[str, Any] = {_METADATA: _metadata(kept, aliases)}
    header |= {name: _entry(tensor, places[name]) for name, tensor in kept.items()}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if problem := strict_json.too_large(text, max_bytes=MAX_HEADER):
        raise StateError(f"{where}{len(kept):,} tensors are too many for one file ({problem}). Join small tensors.")
    head = struct.pack("<Q", len(text)) + text
    return Layout(head, tuple(kept[name] for name in order), len(head) + end)


def _problem(name: object, tensor: object) -> str:
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__} is among the weights, which must be tensors."
    if not isinstance(name, str) or name == _METADATA:
        return "names of weights must be strings, and this name is reserved. Rename the weight."
    return tensor_bytes.refusal(tensor)


def _metadata(kept: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return ``format`` and tied names for other tools, and the same under Hookline's own key."""
    ours: dict[str, Any] = {
        "aliases": aliases,
        "dtypes": {n: str(t.dtype).removeprefix("torch.") for n, t in kept.items() if not _is_known(t)},
        "strides": {n: strides for n, t in kept.items() if (strides := tensor_bytes.own_strides(t)) is not None},
    }
    return {**aliases, _FORMAT: "pt", _OURS: json.dumps({key: value for key, value in ours.items() if value})}


def _entry(tensor: Tensor, place: list[int]) -> dict[str, Any]:
    shape = list(tensor.shape)
    if _is_known(tensor):
        return {"dtype": tensor_bytes.STORED_AS[tensor.dtype], "shape": shape, "data_offsets": place}
    return {"dtype": "U8", "shape": [*shape, tensor.dtype.itemsize], "data_offsets": place}


def _is_known(tensor: Tensor) -> bool:
    return tensor.dtype in tensor_bytes.STORED_AS


# -- reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor in a file. Its bytes are counted from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    strides: list[int] | None
    begin: int
    end: int


class Source(Protocol):
    """Source of tensors: a file, or bytes in memory."""

    @property
    def path(self) -> str: ...

    @property
    def left(self) -> int: ...

    def read(self, count: int) -> bytes: ...

    def read_into(self, view: memoryview) -> None: ...


def read_tensors(file: Source) -> dict[str, Tensor]:
    """Return all tensors of a file, after a check of the header against the file size.

    The caller must compare the hash with ``finish()`` before it uses the tensors.
    """
    places, aliases = read_header(file)
    found = {place.name: _read_tensor(place, file) for place in sorted(places, key=_bounds)}
    ordered = {place.name: found[place.name] for place in places}
    return ordered | {alias: found[name] for alias, name in aliases.items()}


def read_header(file: Source) -> tuple[list[Place], dict[str, str]]:
    """Return the tensors of a file in their order, and the tied names."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(MAX_HEADER, file.left):
        most = f"the file has {file.left:,} after it, and the limit is {MAX_HEADER:,}"
        raise CheckpointCorruptError(file.path, f"its header claims {length:,} bytes, but {most}")
    header = strict_json.parse(file.read(length), file.path, max_bytes=MAX_HEADER)
    if not isinstance(header, dict):
        raise CheckpointCorruptError(file.path, "its header is not a JSON object")
    notes = _Notes(header.pop(_METADATA, {}), header, file.path)
    places = [_read_entry(name, entry, notes, file.path) for name, entry in header.items()]
    end = 0
    for place in sorted(places, key=_bounds):
        if place.begin != end:
            reason = f"tensor {place.name[:100]!r} starts at byte {place.begin:,}, not at {end:,}"
            raise CheckpointCorruptError(file.path, reason)
        end = place.end
    if end != file.left:
        raise CheckpointCorruptError(file.path, f"its tensors claim {end:,} bytes, but it has {file.left:,} for them")
    return places, notes.aliases


def _bounds(place: Place) -> tuple[int, int]:
    return place.begin, place.end


def _read_tensor(place: Place, file: Source) -> Tensor:
    data = torch.empty(place.end - place.begin, dtype=torch.uint8)
    file.read_into(tensor_bytes.memory(data))
    try:
        return tensor_bytes.from_bytes(data, place.dtype, place.shape, place.strides)
    except (RuntimeError, TypeError, OverflowError, NotImplementedError) as error:
        raise CheckpointCorruptError(file.path, f"tensor {place.name[:100]!r} cannot be created: {error}") from error


def _read_entry(name: str, entry: Any, notes: _Notes, path: str) -> Place:
    what = f"tensor {name[:100]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointCorruptError(path, f"{what} must have dtype, shape and data_offsets, and nothing else")
    shape, offsets = read_sizes(entry["shape"], f"the shape of {what}", path), entry["data_offsets"]
    begin, end = read_sizes(offsets, f"data_offsets of {what}", path, count=2)
    stored, dtype = entry["dtype"], notes.dtypes.get(name)
    known = tensor_bytes.READ_AS.get(stored) if isinstance(stored, str) else None
    if known is None:
        raise CheckpointCorruptError(path, f"{what} has the unknown dtype {str(stored)[:50]!r}")
    if dtype is None:
        dtype = known
    elif known is not torch.uint8 or not shape or shape.pop() != dtype.itemsize:
        raise CheckpointCorruptError(path, f"{what} is declared as {dtype} stored as bytes, but it is not")
    if end - begin != math.prod(shape) * dtype.itemsize:
        reason = f"{what} has {end - begin:,} bytes, but its shape {shape} of {dtype} needs "
        raise CheckpointCorruptError(path, f"{reason}{math.prod(shape) * dtype.itemsize:,}")
    strides = notes.strides.get(name)
    if strides is not None and not tensor_bytes.fills(shape, strides):
        raise CheckpointCorruptError(path, f"{what} has the shape {shape} and strides {strides}, which do not fit")
    return Place(name, dtype, shape, strides, begin, end)


class _Notes:
    """Tied names, dtypes stored as bytes, and strides, from the metadata of a file."""

    def __init__(self, metadata: Any, header: Mapping[str, Any], path: str) -> None:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise CheckpointCorruptError(path, "its metadata contains values that are not strings")
        ours = strict_json.parse(metadata.get(_OURS, "{}").encode("utf-8", "replace"), path, max_bytes=MAX_HEADER)
        if not isinstance(ours, dict) or not ours.keys() <= {"aliases", "dtypes", "strides"}:
            raise CheckpointCorruptError(path, "its metadata has more than aliases, dtypes and strides")
        aliases, dtypes, strides = (ours.get(key, {}) for key in ("aliases", "dtypes", "strides"))
        if _OURS not in metadata:  # Another tool wrote the file; it may list tied names.
            aliases = {alias: name for alias, name in metadata.items() if name in header and alias not in header}
        for what in (aliases, dtypes, strides):
            if not isinstance(what, dict):
                raise CheckpointCorruptError(path, "its metadata contains values that are not JSON objects")
        self.aliases: dict[str, str] = aliases
        for alias, name in aliases.items():
            if alias in header or not isinstance(name, str) or name not in header:
                reason = f"the name {alias[:100]!r} is tied to {str(name)[:100]!r}, which is invalid"
                raise CheckpointCorruptError(path, reason)
        self.dtypes: dict[str, torch.dtype] = {}
        for name, text in dtypes.items():
            dtype = tensor_bytes.dtype_named(text)
            if name not in header or dtype is None:
                raise CheckpointCorruptError(path, f"tensor {name[:100]!r} has the unknown dtype {str(text)[:50]!r}")
            self.dtypes[name] = dtype
        self.strides = {
            name: read_sizes(value, f"the strides of {name[:100]!r}", path) for name, value in strides.items()
        }
        if not self.strides.keys() <= header.keys():
            raise CheckpointCorruptError(path, "its metadata has strides of tensors that do not exist")


def read_sizes(value: Any, what: str, path: str, count: int | None = None) -> list[int]:
    """Return a list of integers >= 0 that are small enough for torch."""
    fine = isinstance(value, list) and len(value) <= MAX_DIMENSIONS and count in (None, len(value))
    if not fine or not all(type(item) is int and 0 <= item < _LARGEST for item in value):
        raise CheckpointCorruptError(path, f"{what} is {str(value)[:100]}, not a list of sizes")
    return list(value)
