"""Number formats: fp32 as it is, bf16 and fp16 under autocast, fp16 with a gradient scaler."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from hookline.loop.gradients import divide
from hookline.loop.settings import PrecisionName

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """``autocast()`` for the forward pass; ``scaler`` where gradients would underflow."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device = device
        self.dtype = DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self, *, enabled: bool = True) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self.dtype, enabled=enabled)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        """Backward outside autocast, scaled where there is a scaler.

        The loss of one of several optimizers leaves no gradient on the parameters of the others.
        """
        own = None if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
        with self.autocast(enabled=False):
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward(inputs=own)  # type: ignore[no-untyped-call]

    def finish_gradients(self, optimizer: Optimizer, weight: Any) -> bool:
        """Unscale, then divide once by the sum of weights over the window. Whether fp16 overflowed.

        To know it is a sync point, which ``GradScaler.step`` would be as well.
        """
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        divide(optimizer, weight)
        if self.scaler is None:
            return False
        return any(bool(found.item()) for found in self.scaler._found_inf_per_device(optimizer).values())
