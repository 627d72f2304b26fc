"""Tensors in several parts: ``DTensor`` and sparse tensors.

This module imports ``DTensor`` only if the program has imported it already.
"""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor


def is_spread(value: object) -> TypeGuard[Tensor]:
    """True if the value is a ``DTensor``: each rank holds a shard or a replica of it."""
    module: Any = sys.modules.get("torch.distributed.tensor")  # Without this import, no DTensor exists.
    return module is not None and isinstance(value, module.DTensor)


def part_of(value: Tensor) -> Tensor:
    """Return the local part of a ``DTensor``, or the tensor itself, in the same memory."""
    held: Any = value
    return held.to_local().detach() if is_spread(value) else value.detach()


def whole(value: Tensor) -> Tensor:
    """Return the full tensor. All ranks of its device mesh must call it."""
    held: Any = value
    return held.detach().full_tensor() if is_spread(value) else value.detach()


def spread_like(value: Tensor, pattern: Tensor) -> Tensor:
    """Return this rank's part of a full tensor, without communication.

    Args:
        value: The same full tensor on every rank. A ``DTensor`` is returned as it is.
        pattern: The tensor whose device mesh and placements the result gets.
    """
    if not is_spread(pattern) or is_spread(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    like: Any = pattern
    on_device = value.to(part_of(pattern).device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def room_like(pattern: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uninitialized memory with the shape and the placements of the pattern."""
    return torch.empty_like(pattern.detach(), dtype=dtype, requires_grad=False)


def plain_parts(value: Tensor) -> list[Tensor]:
    """Return the dense parts of a sparse tensor, or a dense tensor itself, in the same memory."""
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value]


def version_of(value: Tensor) -> tuple[int, int]:
    """Return a value that changes when the data of the tensor changes.

    A sparse tensor, such as the edges of a graph, has no data pointer. Its ``id`` replaces it.
    """
    return value.data_ptr() if value.layout == torch.strided else id(value), value._version
