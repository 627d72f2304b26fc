"""Number formats: fp32 as it is, bf16 and fp16 under autocast, fp16 with a gradient scaler."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from hookline.errors import LossError
from hookline.loop.model.gradients import divide
from hookline.loop.settings import PrecisionName

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """``autocast()`` for the forward pass; ``scaler`` where gradients would underflow."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device = device
        self.dtype = DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

        self._unit: float | None = None
        self.common_unit: float | None = None
        """That of all ranks: with a unit of each rank's own, weights that differ between them would count alike."""
        self._unscaled: set[int] = set()

    def autocast(self, *, enabled: bool = True) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self.dtype, enabled=enabled)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None) -> None:
        """Backward, scaled where there is a scaler.

        The loss of one of several optimizers leaves no gradient on the parameters of the others.
        """
        own: list[torch.Tensor] | None = None
        if optimizer is not None:
            own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            if not own:
                raise LossError(f"every parameter of {type(optimizer).__name__} is frozen: this loss can move none")
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward(inputs=own)  # type: ignore[no-untyped-call]

    def relative(self, weight: Any) -> Any:
        """A weight to multiply a loss with, in common units. In fp16 in those of the window's first: no overflow."""
        if isinstance(weight, torch.Tensor) and not weight.is_floating_point():
            weight = weight.to(torch.float32 if weight.device.type == "mps" else torch.float64)
        if self.common_unit is not None:
            return weight / self.common_unit
        if self.scaler is None:
            return weight
        if self._unit is None:
            self._unit = float(weight) or 1.0
        return weight / self._unit

    def finish_gradients(self, optimizer: Optimizer, weight: Any) -> bool:
        """Unscale, then divide once by the sum of weights over the window, in the same units. Whether fp16 overflowed.

        To know it is a sync point, which ``GradScaler.step`` would be as well.
        """
        if self.scaler is not None:
            if id(optimizer) in self._unscaled:  # it steps several times in one window, as the critic of a GAN
                self._update_scale()
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))
        if weight is not None:
            divide(optimizer, self.relative(weight))
        if self.scaler is None:
            return False
        return any(bool(found.item()) for found in self.scaler._found_inf_per_device(optimizer).values())

    def step(self, optimizer: Optimizer) -> None:
        """The update. The weights that autocast holds in its cache are the old ones then."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
        torch.clear_autocast_cache()

    def end_window(self, *, skipped: bool = False) -> None:
        """One scale for all optimizers of a window; it may change after it, but not by one that was skipped."""
        self._unit = None
        if self._unscaled and skipped and self.scaler is not None:
            self._unscaled.clear()
            self.scaler.update(self.scaler.get_scale())
        elif self._unscaled:
            self._update_scale()

    def _update_scale(self) -> None:
        self._unscaled.clear()
        if self.scaler is not None:
            self.scaler.update()
