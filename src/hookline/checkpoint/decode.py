"""Decode JSON and tensors to a tree of values, without importing anything."""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from hookline.checkpoint import tensor_bytes
from hookline.checkpoint.encode import MAX_DEPTH
from hookline.errors import CheckpointCorruptError, CheckpointError

_PLAIN: Final = frozenset({str, bool, int, float, type(None)})
_MOST_DIGITS: Final = 100_000
_HEX: Final = re.compile(r"-?0x[0-9a-f]+")


def decode(tree: Any, tensors: Mapping[str, Tensor], path: str) -> Any:
    """Return the tree that was given to ``encode``.

    Args:
        tree: The parsed JSON.
        tensors: The tensors by name.
        path: Path of the file, for errors.

    Raises:
        CheckpointCorruptError: If ``encode`` cannot have written the tree.

    Example:
        >>> decode({"betas": {"$tuple": [0.9, 0.99]}}, {}, "state.json")
        {'betas': (0.9, 0.99)}
    """
    decoder = _Decoder(tensors, path)
    value = decoder.value(tree)
    if unused := tensors.keys() - decoder.used:
        raise CheckpointCorruptError(path, f"{len(unused)} tensors are not used, such as {min(unused)[:100]!r}")
    return value


class _Decoder:
    """Walks the tree and counts its depth."""

    def __init__(self, tensors: Mapping[str, Tensor], path: str) -> None:
        self.used: set[str] = set()
        self._tensors = tensors
        self._path = path
        self._depth = 0

    def value(self, tree: Any) -> Any:
        if type(tree) in _PLAIN:
            return tree
        if self._depth > MAX_DEPTH + 1:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        found = self.items(tree) if isinstance(tree, list) else self._object(tree)
        self._depth -= 1
        return found

    def items(self, tree: Any) -> list[Any]:
        if not isinstance(tree, list):
            raise self.error(f"expected a list, found {str(tree)[:50]!r}")
        if _PLAIN.issuperset(map(type, tree)):
            return list(tree)
        return [self.value(item) for item in tree]

    def _object(self, tree: dict[str, Any]) -> Any:
        tag = next((key for key in tree if key.startswith("$")), None)
        if tag is None:
            return {key: self.value(value) for key, value in tree.items()}
        decoder = _DECODERS.get(tag)
        if decoder is None or len(tree) != 1:
            raise self.error(f"{tag[:50]!r} is an unknown type of value")
        try:
            return decoder(self, tree[tag])
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise self.error(f"{str(tree)[:100]} cannot be read: {error}") from error

    def pairs(self, tree: Any) -> list[tuple[Any, Any]]:
        if not isinstance(tree, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in tree):
            raise self.error("expected pairs of keys and values")
        return [(self.value(key), self.value(value)) for key, value in tree]

    def dict(self, tree: Any) -> dict[Any, Any]:
        pairs = self.pairs(tree)
        found = dict(pairs)
        if len(found) < len(pairs):
            raise self.error("a key occurs twice")
        return found

    def tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name not in self._tensors:
            raise self.error(f"the tensor {str(name)[:100]!r} is missing")
        self.used.add(name)
        return self._tensors[name]

    def array(self, name: Any) -> Any:
        tensor = self.tensor(name)
        try:
            return tensor.numpy()
        except RuntimeError as error:
            raise CheckpointError(
                f"{self._path} contains NumPy arrays, but NumPy is not usable ({error}). Install numpy."
            ) from error

    def error(self, reason: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(self._path, reason)


def _int(_: _Decoder, text: Any) -> int:
    if len(_text(text)) > _MOST_DIGITS or not _HEX.fullmatch(text):
        raise ValueError("not an integer in base 16")
    return int(text, 16)


def _float(_: _Decoder, text: Any) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError("not one of nan, inf and -inf")
    return float(text)


def _complex(decoder: _Decoder, parts: Any) -> complex:
    real, imaginary = decoder.items(parts)
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("expected two floats")
    return complex(real, imaginary)


def _bytes(_: _Decoder, text: Any) -> bytes:
    try:
        return base64.b64decode(_text(text), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _long_bytes(decoder: _Decoder, name: Any) -> bytes:
    tensor = decoder.tensor(name)
    if tensor.dtype is not torch.uint8 or tensor.ndim != 1:
        raise ValueError("expected bytes")
    return bytes(tensor_bytes.memory(tensor))


def _size(decoder: _Decoder, sizes: Any) -> torch.Size:
    found = decoder.items(sizes)
    if not all(type(size) is int for size in found):
        raise ValueError("expected integers")
    return torch.Size(found)


def _dtype(_: _Decoder, text: Any) -> torch.dtype:
    if (dtype := tensor_bytes.DTYPES.get(_text(text))) is None:
        raise ValueError("torch has no such dtype")
    return dtype


def _counter(decoder: _Decoder, tree: Any) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, decoder.dict(tree))  # Counter.update() would add the counts.
    return counter


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


_DECODERS: Final[Mapping[str, Callable[[_Decoder, Any], Any]]] = MappingProxyType(
    {
        "$dict": _Decoder.dict,
        "$OrderedDict": lambda decoder, tree: OrderedDict(decoder.dict(tree)),
        "$Counter": _counter,
        "$tuple": lambda decoder, tree: tuple(decoder.items(tree)),
        "$set": lambda decoder, tree: set(decoder.items(tree)),
        "$frozenset": lambda decoder, tree: frozenset(decoder.items(tree)),
        "$int": _int,
        "$float": _float,
        "$complex": _complex,
        "$bytes": _bytes,
        "$long_bytes": _long_bytes,
        "$size": _size,
        "$dtype": _dtype,
        "$device": lambda _, text: torch.device(_text(text)),
        "$tensor": _Decoder.tensor,
        "$ndarray": _Decoder.array,
    }
)
