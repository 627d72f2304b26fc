"""Tensors in several pieces: torch's ``DTensor``, known without importing it where nobody has, and sparse ones."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor


def is_spread(value: object) -> TypeGuard[Tensor]:
    """Whether it is a ``DTensor``: each rank holds a part of it, or a copy."""
    module: Any = sys.modules.get("torch.distributed.tensor")  # not imported: then nobody has made one
    return module is not None and isinstance(value, module.DTensor)


def part_of(value: Tensor) -> Tensor:
    """What this rank holds of it: the tensor itself, if it is not spread. It is the same memory."""
    held: Any = value
    return held.to_local().detach() if is_spread(value) else value.detach()


def whole(value: Tensor) -> Tensor:
    """By all ranks that hold parts of it: all of it, on each of them."""
    held: Any = value
    return held.detach().full_tensor() if is_spread(value) else value.detach()


def spread_like(value: Tensor, pattern: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has whole, placed as the pattern is. Nothing is sent."""
    if not is_spread(pattern) or is_spread(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    like: Any = pattern
    on_device = value.to(part_of(pattern).device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def room_like(pattern: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for values that are spread as the pattern is."""
    return torch.empty_like(pattern.detach(), dtype=dtype, requires_grad=False)


def plain_parts(value: Tensor) -> list[Tensor]:
    """The tensors that a sparse one is made of, in the same memory; of any other, itself."""
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value]


def version_of(value: Tensor) -> tuple[int, int]:
    """Changes with what is in it; a sparse one, as the edges of a graph are kept, has no address of its own."""
    return value.data_ptr() if value.layout == torch.strided else id(value), value._version
