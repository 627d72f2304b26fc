"""Compare two snapshots bit by bit, and list every path that differs."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from hookline.checkpoint import tensor_bytes
from hookline.checkpoint.snapshot import About, Snapshot


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two snapshots."""

    path: str
    """Such as ``weights/layer.bias`` or ``state/optimizers/main/param_groups/0/lr``."""
    first: str
    second: str
    where: str = ""
    """For a tensor: index of the first element that differs, and the number of such elements."""

    def __str__(self) -> str:
        place = f" {self.where}" if self.where else ""
        return f"{self.path}{place}: {self.first} and {self.second}"


def compare(first: Snapshot, second: Snapshot, ignore: Collection[str] = ()) -> list[Difference]:
    """Return all differences: first in the manifest, then in the state, then in the weights.

    Two values are equal if their types and all their bits are equal: NaN equals NaN, and 0.0 differs from -0.0. The
    order of the keys in a dict does not count.

    Args:
        first: One snapshot.
        second: The other snapshot.
        ignore: Patterns of paths to skip, together with everything below them. ``*`` matches any characters.

    Returns:
        The differences. The weights come last because all other state affects them.

    Example:
        >>> about = About(step=4, epoch=0, batch=4, sample=4, seconds=1.0, run="demo")
        >>> one = Snapshot(about, {"w": torch.tensor([1.0, 2.0])}, {"lr": 0.1})
        >>> other = Snapshot(about, {"w": torch.tensor([1.0, 2.5])}, {"lr": 0.1})
        >>> print(*compare(one, other))
        weights/w at [1], 1 of 2 differ: 2.0 and 2.5
    """
    parts = (
        ("about", _fields(first.about), _fields(second.about)),
        ("state", first.state, second.state),
        ("weights", dict(first.weights), dict(second.weights)),
    )
    return [found for name, one, other in parts for found in _differences(name, one, other, tuple(ignore))]


def _fields(about: About) -> dict[str, Any]:
    return {field.name: getattr(about, field.name) for field in dataclasses.fields(about)}


def _differences(path: str, one: Any, other: Any, ignore: tuple[str, ...]) -> Iterator[Difference]:
    if any(fnmatchcase(path, pattern) for pattern in ignore):
        return
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        yield from _of_tensors(path, one, other)
    elif type(one) is not type(other):
        yield Difference(path, _typed(one), _typed(other))
    elif isinstance(one, Mapping):
        yield from _of_mappings(path, one, other, ignore)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield Difference(path, f"{len(one)} items", f"{len(other)} items")
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from _differences(f"{path}/{index}", left, right, ignore)
    elif not _same(one, other):
        yield Difference(path, _shown(one), _shown(other))


def _of_mappings(path: str, one: Mapping[Any, Any], other: Mapping[Any, Any], ignore: tuple[str, ...]) -> Any:
    for key in [*one, *(key for key in other if key not in one)]:
        below = f"{path}/{key if isinstance(key, str) else repr(key)}"
        if key in one and key in other:
            yield from _differences(below, one[key], other[key], ignore)
        elif not any(fnmatchcase(below, pattern) for pattern in ignore):
            yield Difference(below, *(_typed(side[key]) if key in side else "nothing" for side in (one, other)))


def _of_tensors(path: str, one: Tensor, other: Tensor) -> Iterator[Difference]:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        yield Difference(path, _typed(one), _typed(other))
        return
    size = one.element_size()
    left, right = (tensor_bytes.on_cpu_in_order(tensor).flatten() for tensor in (one, other))
    differs = (left.view(torch.uint8) != right.view(torch.uint8)).view(-1, size).any(1) if one.numel() else left
    count = int(differs.sum()) if one.numel() else 0
    if count:
        index = int(differs.to(torch.uint8).argmax())
        place = [int(part) for part in torch.unravel_index(torch.tensor(index), one.shape)] if one.ndim else []
        where = f"at {place}, {count:,} of {one.numel():,} differ"
        yield Difference(path, _shown(left[index].item()), _shown(right[index].item()), where)
    elif tensor_bytes.own_strides(one) != tensor_bytes.own_strides(other):
        # The values are equal, but operations such as sum() add them in another order.
        yield Difference(path, f"strides {list(one.stride())}", f"strides {list(other.stride())}")


def _same(one: Any, other: Any) -> bool:
    """Return True if two values of one type have the same bits."""
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return _same(one.real, other.real) and _same(one.imag, other.imag)
    if hasattr(one, "tobytes"):  # A NumPy array. NumPy may not be installed.
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _typed(value: Any) -> str:
    """Return a value together with its type."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{_shown(value)} ({type(value).__name__})"
