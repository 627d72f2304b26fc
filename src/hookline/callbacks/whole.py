"""A tensor of which each rank holds a part, made whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """By all ranks, where it is spread over them (a ``DTensor``); else the tensor itself."""
    spread: Any = tensor
    found: Tensor = spread.full_tensor() if hasattr(spread, "full_tensor") else tensor
    return found
