"""Full tensors of sharded tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor of a ``DTensor``, with all ranks, or else the tensor itself."""
    spread: Any = tensor
    found: Tensor = spread.full_tensor() if hasattr(spread, "full_tensor") else tensor
    return found
