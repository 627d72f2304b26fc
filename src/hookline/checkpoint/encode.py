"""Encode state without pickle: a tree of values becomes JSON and named tensors.

These types are restored exactly: None, bool, int of any size, float (with NaN, infinities and -0.0), complex, str,
bytes, list, tuple, dict (with its order, and with keys of any of these types that are hashable), OrderedDict, Counter,
set, frozenset, torch.Size, torch.dtype, torch.device, tensors, NumPy arrays of numbers.

These types are restored as a simpler type:

- A deque becomes a list, a named tuple a tuple, a Path a str, a bytearray bytes. Every other mapping (defaultdict,
  ModuleDict, a subclass of dict) becomes a dict.
- NumPy scalars and members of IntEnum and StrEnum become bool, int, float, complex or str.
- A parameter or a plain subclass of Tensor becomes a plain tensor, on the CPU and without gradient.
- Tensors that are equal views of the same memory become one tensor again. Tensors that overlap in part become
  separate tensors. A list or dict that is in the tree twice becomes two.

All other types raise an error with the path of their key: a function, a generator, a member of a plain Enum, a Duration
(save its string), an instance of a user's class. To restore them would mean to import and run code that a file names.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

from hookline.checkpoint import tensor_bytes
from hookline.distributed.dtensors import is_spread
from hookline.errors import StateError

MAX_DEPTH: Final = 64
"""Deepest nesting. A deeper tree probably contains itself."""
LONG_BYTES: Final = 4096
"""Bytes of this length or more are stored with the tensors: in JSON they need more space."""
_PLAIN: Final = frozenset({str, bool, type(None)})
_GENERAL_HINT: Final = "save plain values, lists, dicts and tensors, and rebuild it in load_state_dict()"


def encode(tree: Any, *, spread: bool = False) -> tuple[Any, dict[str, Tensor]]:
    """Return a tree as JSON values, and its tensors by the path of their key.

    No tensor is copied.

    Args:
        tree: The values to encode.
        spread: Accept sharded tensors. The caller then has to write them.

    Raises:
        StateError: If the tree contains a value that cannot be saved.

    Example:
        >>> encode({"lr": 0.1, "betas": (0.9, 0.99), "best": float("inf")})
        ({'lr': 0.1, 'betas': {'$tuple': [0.9, 0.99]}, 'best': {'$float': 'inf'}}, {})
        >>> encode({"callbacks": {"Mine": {"rule": print}}})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hookline.errors.StateError: callbacks/Mine/rule: a builtin_function_or_method cannot be saved. ...
    """
    encoder = _Encoder(spread=spread)
    return encoder.value(tree), encoder.tensors


def check(tree: Any, *, spread: bool = False) -> None:
    """Raise the error that ``encode`` would raise. A run calls this at its start, to fail early."""
    try:
        encode(tree, spread=spread)
    except StateError as error:  # The message contains the path; the recursive traceback adds nothing.
        raise error.with_traceback(None) from None


class _Encoder:
    """Walks the tree and tracks the current path."""

    def __init__(self, *, spread: bool = False) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._spread = spread
        self._path: list[str] = []

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if len(self._path) > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} levels deep", "check whether it contains itself")
        for kinds, encoder in _ENCODERS:
            if isinstance(value, kinds):
                return encoder(self, value)
        return self._foreign(value)

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return the encoded items of a list. Long lists of numbers or strings take a fast path."""
        values = list(values)
        kinds = set(map(type, values))
        if kinds <= _PLAIN:
            return values
        if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**64:
            return values
        if kinds == {float} and all(map(math.isfinite, values)):
            return values
        return [self._at(str(index), value) for index, value in enumerate(values)]

    def pairs(self, mapping: Mapping[Any, Any]) -> list[list[Any]]:
        found = [[self._key(key), self._at(_shown(key), value)] for key, value in mapping.items()]
        if len({json.dumps(key) for key, _ in found}) < len(found):
            raise self._error("two keys become equal when they are saved", "rename one of them")
        return found

    def mapping(self, mapping: Mapping[Any, Any]) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in mapping):
            return {key: self._at(key, value) for key, value in mapping.items()}
        return {"$dict": self.pairs(mapping)}

    def tensor(self, tensor: Tensor, tag: str = "$tensor") -> dict[str, str]:
        if not (self._spread and is_spread(tensor)) and (problem := tensor_bytes.refusal(tensor)):
            raise StateError(f"{self._where()}: {problem}")
        path = name = "/".join(self._path) or "value"
        number = 1
        while name in self.tensors:  # Both a key "a/b" and a key "b" inside "a" have the path a/b.
            number += 1
            name = f"{path}#{number}"
        self.tensors[name] = tensor.detach()
        return {tag: name}

    def bytes(self, value: bytes | bytearray) -> dict[str, str]:
        if len(value) < LONG_BYTES:
            return {"$bytes": base64.b64encode(value).decode()}
        return self.tensor(torch.frombuffer(bytearray(value), dtype=torch.uint8), "$long_bytes")

    def unordered(self, values: Iterable[Any]) -> list[Any]:
        """Return the items sorted by their JSON, so that equal sets give equal files."""
        return sorted((self._key(value) for value in values), key=json.dumps)

    def number(self, value: int | float) -> Any:
        return self.value(int(value) if isinstance(value, int) else float(value))

    def complex(self, value: complex) -> Any:
        return {"$complex": [self.value(value.real), self.value(value.imag)]}

    def _key(self, key: Any) -> Any:
        """Encode a key or an item of a set. Tensors are refused: they are compared by identity."""
        before = len(self.tensors)
        encoded = self._at(_shown(key), key)
        if len(self.tensors) > before:
            raise self._error(f"{_named(key)} cannot be saved as a key", "use numbers or strings as keys")
        return encoded

    def _at(self, name: str, value: Any) -> Any:
        self._path.append(name)
        encoded = self.value(value)
        self._path.pop()
        return encoded

    def _foreign(self, value: Any) -> Any:
        """Encode NumPy values, if NumPy has been imported, and refuse everything else."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            plain = value.item()
            if isinstance(plain, bool | int | float | complex | str | bytes):
                return self.value(plain)
        if numpy is not None and isinstance(value, numpy.ndarray):
            # torch.from_numpy() does not accept read-only or unaligned arrays or negative strides: copy those.
            usable = value.flags.writeable and value.flags.aligned and min(value.strides, default=0) >= 0
            try:
                tensor = torch.from_numpy(value if usable else value.copy())
            except (TypeError, ValueError) as error:  # An array of objects, strings, dates or foreign byte order.
                raise self._error(f"an array of {value.dtype} cannot be saved ({error})", "save numbers") from None
            return self.tensor(tensor, "$ndarray")
        raise self._error(f"{_named(value)} cannot be saved", _hint(value))

    def _where(self) -> str:
        return "/".join(self._path) or "the state"

    def _error(self, what: str, hint: str) -> StateError:
        return StateError(f"{self._where()}: {what}. {hint[0].upper()}{hint[1:]}.")


# The order matters: a bool is an int, a Counter and an OrderedDict are mappings, a torch.Size is a tuple.
_ENCODERS: Final[tuple[tuple[Any, Callable[[_Encoder, Any], Any]], ...]] = (
    (Tensor, lambda encoder, value: encoder.tensor(value)),
    (OrderedDict, lambda encoder, value: {"$OrderedDict": encoder.pairs(value)}),
    (Counter, lambda encoder, value: {"$Counter": encoder.pairs(value)}),
    (Mapping, lambda encoder, value: encoder.mapping(value)),
    (torch.Size, lambda encoder, value: {"$size": list(value)}),
    (tuple, lambda encoder, value: {"$tuple": encoder.items(value)}),
    (list | deque, lambda encoder, value: encoder.items(value)),
    (frozenset, lambda encoder, value: {"$frozenset": encoder.unordered(value)}),
    (set, lambda encoder, value: {"$set": encoder.unordered(value)}),
    (bytes | bytearray, lambda encoder, value: encoder.bytes(value)),
    (str, lambda encoder, value: str.__str__(value)),
    (int | float, lambda encoder, value: encoder.number(value)),
    (complex, lambda encoder, value: encoder.complex(value)),
    (torch.dtype, lambda encoder, value: {"$dtype": str(value).removeprefix("torch.")}),
    (torch.device, lambda encoder, value: {"$device": str(value)}),
    (PurePath, lambda encoder, value: str(value)),
)


def _shown(key: Any) -> str:
    try:
        text = key if isinstance(key, str) else repr(key)
    except ValueError:  # An integer with more digits than Python converts to a string.
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _named(value: Any) -> str:
    name = "lambda" if isinstance(value, FunctionType) and value.__name__ == "<lambda>" else type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _hint(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "save its get_state(), which is a tensor"
    if isinstance(value, Enum):
        return "save its .value or .name"
    if hasattr(value, "state_dict"):
        return "save its state_dict()"
    return _GENERAL_HINT
