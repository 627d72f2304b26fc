"""Nested batches and outputs: dicts, lists, tuples, named tuples and dataclasses of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Path = tuple[Any, ...]
"""Keys, indices and field names that lead to a value."""


def walk(
    value: Any, is_leaf: Callable[[Any], bool] | None = None, *, depth: int | None = None, path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a nested value with their paths.

    Args:
        value: The nested value.
        is_leaf: Function that returns True for a container to yield as a whole.
        depth: Number of levels after which a container is a leaf. ``None``: no limit.
        path: Path of the value itself.

    Example:
        >>> dict(walk({"logits": 1, "boxes": (2, 3)}))
        {('logits',): 1, ('boxes', 0): 2, ('boxes', 1): 3}
    """
    is_whole = depth == 0 or (is_leaf is not None and is_leaf(value))
    children = None if is_whole else _children(value)
    if children is None:
        yield path, value
        return
    for key, child in children:
        yield from walk(child, is_leaf, depth=None if depth is None else depth - 1, path=(*path, key))


def _children(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return the keys and values of a container, or ``None`` for a leaf."""
    if isinstance(value, Tensor | str | bytes):
        return None
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, list | tuple):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return None


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a nested value, in order."""
    return (leaf for _, leaf in walk(value) if isinstance(leaf, Tensor))


def columns(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a batch or output with dotted names, without ``None``.

    A list without tensors is one value: a column of strings, for example.

    Example:
        >>> dict(columns({"logits": 1, "boxes": (2, 3), "names": ["a", "b"]}))
        {'logits': 1, 'boxes.0': 2, 'boxes.1': 3, 'names': ['a', 'b']}
    """
    for path, leaf in walk(value, _is_column):
        if leaf is not None:
            yield ".".join(map(str, (name, *path) if name else path)), leaf


def _is_column(value: Any) -> bool:
    """True for a list without tensors."""
    return isinstance(value, list) and not any(isinstance(item, Tensor) for item in value)


def map_tensors(
    function: Callable[[Tensor], Any], value: Any, otherwise: Callable[[Any], Any] = lambda leaf: leaf
) -> Any:
    """Return a copy of nested dicts, lists and tuples with a function applied to each tensor.

    Args:
        function: Function of a tensor.
        value: The nested value. Objects of other classes are leaves.
        otherwise: Function of a leaf that is not a tensor.
    """
    if isinstance(value, Tensor):
        return function(value)
    if type(value) is dict:
        return {key: map_tensors(function, child, otherwise) for key, child in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, child, otherwise) for child in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, child, otherwise) for child in value)
    return otherwise(value)


def concatenate(batches: list[Any]) -> Any:
    """Return the batches as one value if possible.

    Tensors are concatenated if their shapes and dtypes allow it, lists are joined, and anything else stays a list of
    batches.
    """
    if all(isinstance(batch, Tensor) and batch.ndim for batch in batches):
        if len({(batch.shape[1:], batch.dtype) for batch in batches}) == 1:
            return torch.cat([batch.detach().cpu() for batch in batches])
    elif all(isinstance(batch, list) for batch in batches):
        return [item for batch in batches for item in batch]
    return batches
