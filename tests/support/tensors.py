"""Comparison of weights, bit for bit."""

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
    """True if two mappings or sequences hold the same tensors, bit for bit, under the same keys."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(torch.equal, one, other))
