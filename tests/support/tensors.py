"""Copies and exact comparison of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


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
