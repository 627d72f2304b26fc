"""Elements of nested batches and outputs by name, and concatenation of batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts, tuples and dataclasses with their names.

    Example:
        >>> dict(leaves({"logits": 1, "boxes": (2, 3)}, ""))
        {'logits': 1, 'boxes.0': 2, 'boxes.1': 3}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        parts = {str(key): its for key, its in value.items()}
    elif isinstance(value, tuple) or (isinstance(value, list) and any(isinstance(its, Tensor) for its in value)):
        fields = getattr(value, "_fields", range(len(value)))
        parts = {str(key): its for key, its in zip(fields, value, strict=True)}
    else:
        if value is not None:
            yield name, value
        return
    for key, its in parts.items():
        yield from leaves(its, f"{name}.{key}" if name else key)


def together(batches: list[Any]) -> Any:
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
