"""Copies and exact comparison of weights, and tensors that are sharded over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def full_tensor(value: Tensor) -> Tensor:
    """All of a tensor, on every rank. If it is sharded, all ranks must call this."""
    return value.detach().full_tensor() if is_sharded(value) else value.detach()


def local_tensor(value: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return value.detach().to_local() if is_sharded(value) else value.detach()


def is_sharded(value: object) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict of the model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def weights_of(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters of the model."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def same_tensors(one: Any, other: Any) -> bool:
    """True if two mappings or sequences hold tensors with the same dtypes and numbers under the same keys."""
    assert len(one), "there is nothing to compare"
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: Tensor, other: Tensor) -> bool:
    """True if dtype, shape and every number are equal. The sign of a zero does not count."""
    return one.dtype == other.dtype and torch.equal(one, other)
