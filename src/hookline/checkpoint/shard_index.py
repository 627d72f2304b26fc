"""The index of the ranks' files, ``.metadata``, read without running anything that it names.

Torch writes it as a pickle, and its own reader would import and call whatever stands in it. Here only the few
operations that such an index needs are let through, every class in it becomes a plain record that can do nothing, and
the records are checked against the files of the manifest before torch sees any of them.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from hookline.checkpoint import names, tensor_bytes
from hookline.checkpoint.hashed_file import FileRecord
from hookline.checkpoint.tensor_file import MAX_DIMENSIONS
from hookline.errors import CheckpointCorruptError

MAX_BYTES: Final = 512 * 2**20
"""The largest index that is read: room for some five million parts."""
_LARGEST: Final = 2**62
_OPERATIONS: Final = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
})  # fmt: skip
"""What torch's own index is made of. Others can take memory without end, or reach outside of the file."""
_METADATA: Final = "torch.distributed.checkpoint.metadata"
_RECORDS: Final = frozenset(
    {
        (_METADATA, "Metadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "TensorStorageMetadata"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "TensorProperties"),
        (_METADATA, "BytesStorageMetadata"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    }
)
"""The classes that are known, all of which become plain records."""
_VALUES: Final = frozenset({(_METADATA, "_MEM_FORMAT_ENCODING"), ("torch.serialization", "_get_layout")})
"""What is called in it with one plain value, which stands for itself here."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a tensor, in the file of a rank."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class SpreadTensor:
    """A tensor that is kept in parts."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


class _Record:
    """An object of the file: its kind and its fields, and nothing that could be called."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str) -> None:
        self.kind, self.fields = kind, {}  # type: ignore[var-annotated]

    def __setstate__(self, state: Any) -> None:
        if self.fields or not isinstance(state, dict | tuple):
            raise pickle.UnpicklingError(f"{self.kind} has a state that is none")
        self.fields = state if isinstance(state, dict) else dict(enumerate(state))


def read_index(data: bytes, files: Mapping[str, FileRecord], path: str) -> dict[str, SpreadTensor]:
    """What the index says, by name; anything odd is a ``CheckpointCorruptError`` that says what."""
    try:
        found = _unpickled(data, path)
        if not isinstance(found, _Record) or found.kind != "Metadata":
            raise CheckpointCorruptError(path, f"it is a {type(found).__name__} and no index of a checkpoint")
        return dict(_tensors(found, files, path))
    except CheckpointCorruptError:
        raise
    except RecursionError:
        raise CheckpointCorruptError(path, "it is nested too deep") from None
    except Exception as error:  # a pickle that is cut or put together by hand fails in any way
        raise CheckpointCorruptError(path, f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


# -- the pickle ----------------------------------------------------------------------------------


def _unpickled(data: bytes, path: str) -> Any:
    if len(data) > MAX_BYTES:
        raise CheckpointCorruptError(path, f"it has {len(data):,} bytes, and at most {MAX_BYTES:,} are read")
    end = 0
    for operation, _, position in pickletools.genops(data):
        if operation.name not in _OPERATIONS:
            raise CheckpointCorruptError(path, f"it has the operation {operation.name}, which no index needs")
        end = (position or 0) + 1
    if end != len(data):
        raise CheckpointCorruptError(path, f"something follows its end, at byte {end:,}")
    return _Unpickler(io.BytesIO(data), path).load()


_InPython: Any = pickle._Unpickler  # not the one in C: its steps can be looked at


class _Unpickler(_InPython):  # type: ignore[misc]
    """Gives records for the classes that are known, and refuses all else by name."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, file: io.BytesIO, path: str) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return _maker(name)
        if (module, name) in _VALUES:
            return _plain_value()
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in tensor_bytes.DTYPES:
            return tensor_bytes.DTYPES[name]
        raise CheckpointCorruptError(
            self._path, f"it names {module[:100]}.{name[:100]}, which no index needs", "it was not written by Hookline"
        )

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems

    def _check_keys(self, keys: list[Any]) -> None:
        """The hash of tuples in tuples, each of them twice, would take longer than anybody waits."""
        for key in keys:
            if not isinstance(key, str | int | _Record):
                raise CheckpointCorruptError(self._path, f"it has a {type(key).__name__} as a key")

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointCorruptError(self._path, "it refers to something outside of itself")


def _maker(name: str) -> type[_Record]:
    """A class of its own each time: what a file does to it is forgotten with it."""

    class Made(_Record):
        def __new__(cls, *args: Any) -> Any:
            if args:
                raise pickle.UnpicklingError(f"{name} is made with arguments")
            made = super().__new__(cls)
            _Record.__init__(made, name)
            return made

        def __init__(self) -> None:
            """All is done."""

    return Made


def _plain_value() -> Callable[..., Any]:
    """A new function each time: the file can set attributes of what it is given."""

    def itself(value: Any = None) -> Any:
        if not isinstance(value, int | str):
            raise pickle.UnpicklingError("a plain value was expected")
        return value

    return itself


# -- what it says --------------------------------------------------------------------------------


def _tensors(index: _Record, files: Mapping[str, FileRecord], path: str) -> Iterator[tuple[str, SpreadTensor]]:
    fields = _fields(index, "Metadata", path)
    if fields.get("planner_data") is not None:
        raise CheckpointCorruptError(path, "it has data of a planner, which Hookline does not write")
    places = _places(fields.get("storage_data"), files, path)
    entries = fields.get("state_dict_metadata")
    if not isinstance(entries, dict):
        raise CheckpointCorruptError(path, "it lists no tensors")
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise CheckpointCorruptError(path, "a tensor has no name")
        yield name, _tensor(name, entry, places, path)
    if places:
        raise CheckpointCorruptError(path, f"it has {len(places)} parts of tensors that it does not list")


_Places = dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]


def _places(entries: Any, files: Mapping[str, FileRecord], path: str) -> _Places:
    """Where each part is: file, first byte, length."""
    if not isinstance(entries, dict):
        raise CheckpointCorruptError(path, "it does not say where the parts are")
    found: _Places = {}
    for index, info in entries.items():
        key, place = _fields(index, "MetadataIndex", path), _fields(info, "_StorageInfo", path)
        name, file = key.get("fqn"), place.get("relative_path")
        if not isinstance(name, str) or not isinstance(file, str):
            raise CheckpointCorruptError(path, "a part has no name or no file")
        if not names.is_shard(file) or file not in files:
            reason = f"a part of {name[:100]!r} is said to be in {file[:100]!r}, which is no file of this checkpoint"
            raise CheckpointCorruptError(path, reason)
        if place.get("transform_descriptors"):
            raise CheckpointCorruptError(path, f"{name[:100]!r} is encoded in a way that Hookline does not write")
        begin, length = _sizes((place.get("offset"), place.get("length")), path)
        if begin + length > files[file].size:
            raise CheckpointCorruptError(path, f"a part of {name[:100]!r} ends after the end of {file}")
        if found.setdefault((name, _sizes(key.get("offset"), path)), (file, begin, length)) != (file, begin, length):
            raise CheckpointCorruptError(path, f"a part of {name[:100]!r} is there twice")
    return found


def _tensor(name: str, entry: Any, places: _Places, path: str) -> SpreadTensor:
    what = f"{name[:100]!r}"
    if isinstance(entry, _Record) and entry.kind == "BytesStorageMetadata":
        raise CheckpointCorruptError(path, f"{what} is an object and no tensor, which Hookline does not write")
    fields = _fields(entry, "TensorStorageMetadata", path)
    dtype = _fields(fields.get("properties"), "TensorProperties", path).get(0)
    if not isinstance(dtype, torch.dtype) or dtype in tensor_bytes.QUANTIZED:
        raise CheckpointCorruptError(path, f"{what} has no dtype that is known")
    shape, chunks = _sizes(fields.get("size"), path), fields.get("chunks")
    if not isinstance(chunks, list):
        raise CheckpointCorruptError(path, f"{what} has no parts")
    parts = tuple(_part(name, chunk, shape, dtype, places, path) for chunk in chunks)
    if sum(math.prod(part.sizes) for part in parts) != math.prod(shape) or _overlap(parts):
        raise CheckpointCorruptError(path, f"the parts of {what} do not make up its shape {list(shape)}")
    return SpreadTensor(name, dtype, shape, parts)


def _overlap(parts: tuple[Part, ...]) -> bool:
    """Whether two parts hold the same place; then another is in none of them."""
    ordered = sorted((part for part in parts if math.prod(part.sizes)), key=lambda part: part.offsets)
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if not one.offsets or other.offsets[0] >= one.offsets[0] + one.sizes[0]:
                break
            pairs = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
            if all(a < c + d and c < a + b for a, b, c, d in pairs):
                return True
    return False


def _part(name: str, chunk: Any, shape: tuple[int, ...], dtype: torch.dtype, places: _Places, path: str) -> Part:
    fields = _fields(chunk, "ChunkStorageMetadata", path)
    offsets, sizes = _sizes(fields.get("offsets"), path), _sizes(fields.get("sizes"), path)
    if len(offsets) != len(shape) or len(sizes) != len(shape):
        raise CheckpointCorruptError(path, f"a part of {name[:100]!r} has not as many dimensions as the whole")
    if any(offset + size > most for offset, size, most in zip(offsets, sizes, shape, strict=True)):
        raise CheckpointCorruptError(path, f"a part of {name[:100]!r} reaches beyond its shape {list(shape)}")
    place = places.pop((name, offsets), None)
    if place is None:
        raise CheckpointCorruptError(path, f"a part of {name[:100]!r} is nowhere")
    if place[2] < math.prod(sizes) * dtype.itemsize:
        raise CheckpointCorruptError(path, f"a part of {name[:100]!r} is larger than its place in {place[0]}")
    return Part(offsets, sizes, *place)


def _fields(value: Any, kind: str, path: str) -> dict[Any, Any]:
    if not isinstance(value, _Record) or value.kind != kind:
        found = value.kind if isinstance(value, _Record) else type(value).__name__
        raise CheckpointCorruptError(path, f"it has a {found} where a {kind} was expected")
    fields: dict[Any, Any] = value.fields
    return fields


def _sizes(value: Any, path: str) -> tuple[int, ...]:
    fine = isinstance(value, tuple) and len(value) <= MAX_DIMENSIONS
    if not fine or not all(type(item) is int and 0 <= item < _LARGEST for item in value):
        raise CheckpointCorruptError(path, f"a {type(value).__name__} stands where sizes were expected")
    return tuple(value)


Room = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor | None]
"""Where a tensor of this name, shape and dtype is to be read into; ``None`` for a new one that is whole."""
