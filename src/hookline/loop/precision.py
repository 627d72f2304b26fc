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

        self._region: torch.autocast | None = None
        self._unit: float | None = None
        self._unscaled = False

    def enter(self) -> None:
        """Forward begins: autocast on, until ``leave``."""
        self.leave()
        self._region = self.autocast()
        self._region.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """Forward is over, or was never begun."""
        if self._region is not None:
            region, self._region = self._region, None
            region.__exit__(None, None, None)

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

    def relative(self, weight: Any) -> Any:
        """A weight to multiply a loss with. In fp16 it is taken in units of the window's first: no overflow."""
        if self.scaler is None:
            return weight
        if self._unit is None:
            self._unit = float(weight) or 1.0
        return weight / self._unit

    def finish_gradients(self, optimizer: Optimizer, weight: Any) -> bool:
        """Unscale, then divide once by the sum of weights over the window. Whether fp16 overflowed.

        To know it is a sync point, which ``GradScaler.step`` would be as well.
        """
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
            self._unscaled = True
        if weight is not None:
            divide(optimizer, weight)
        if self.scaler is None:
            return False
        return any(bool(found.item()) for found in self.scaler._found_inf_per_device(optimizer).values())

    def step(self, optimizer: Optimizer) -> None:
        """The update, with gradients that are unscaled already."""
        if self.scaler is not None:
            self.scaler.step(optimizer)

    def end_window(self) -> None:
        """One scale for all optimizers of a window; it may change after it."""
        self._unit = None
        if self._unscaled and self.scaler is not None:
            self._unscaled = False
            self.scaler.update()
