"""Check that all ranks read the same data set, so that each sample is read exactly once."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor

from hookline.errors import DataError


class Circle(Protocol):
    """The collectives that feeds need from the group of all ranks."""

    rank: int
    size: int
    broken: bool

    def exchange(self, value: Any) -> list[Any]: ...
    def total(self, values: Tensor) -> Tensor: ...


def count_of(circle: Circle, has: bool) -> int:
    """Return the number of ranks that have another batch. All ranks must call it."""
    return int(circle.total(torch.tensor([float(has)], dtype=torch.float64)))


def check_alike(circle: Circle, what: str, fact: Any, fix: str) -> None:
    """Raise an error if a fact differs between ranks. All ranks must call it.

    Args:
        circle: The group of all ranks.
        what: Beginning of the error message.
        fact: The fact on this rank.
        fix: End of the error message: what to do.
    """
    said = circle.exchange(fact)
    for rank, its in enumerate(said):
        if its != said[0]:
            raise DataError(f"{what} {said[0]} on rank 0 and {its} on rank {rank}; {fix}")


def digest(value: Any) -> str:
    """Return a digest of all numbers and strings in a value. Other objects are left out.

    >>> digest({"x": torch.ones(2), "id": ["a"]}) == digest({"x": torch.ones(2), "id": ["a"]})
    True
    >>> digest([torch.ones(2)]) == digest([torch.zeros(2)])
    False
    """
    found = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        found.update(part)
    return found.hexdigest()


def digest_of_indices(indices: Any) -> int:
    """Return 32 bits that depend on the indices of a batch, and are equal in every process.

    >>> digest_of_indices([3, 1]) == digest_of_indices([3, 1]), digest_of_indices([3, 1]) == digest_of_indices([1, 3])
    (True, False)
    """
    try:
        return crc32(struct.pack(f"<{len(indices)}q", *indices))
    except (TypeError, struct.error):  # One index without a batch sampler, or indices that are not integers.
        return int(digest(indices)[:8], 16)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        if not (value.is_sparse or value.is_meta or value.is_nested or value.is_quantized):
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, str | int | float | bytes | bool | None):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif type(value).__module__ == "numpy" and getattr(value, "dtype", None) is not None and value.dtype.kind != "O":
        yield value.tobytes()
