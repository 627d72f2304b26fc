"""Precision of a run: fp32, or bf16 and fp16 with autocast; fp16 with a gradient scaler."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from hookline.errors import LossError
from hookline.loop.model.gradients import divide
from hookline.loop.settings import PrecisionName

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for the forward, and a gradient scaler for fp16, whose gradients would underflow.

    Args:
        name: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: The device of the model.
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device = device
        self.dtype = DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

        self._unscaled: set[int] = set()

    def autocast(self, *, enabled: bool = True) -> torch.autocast:
        """Return the autocast context for the forward."""
        return torch.autocast(self._device.type, dtype=self.dtype, enabled=enabled)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None, fraction: Any = None) -> None:
        """Compute the gradients of a loss, scaled if there is a scaler.

        Args:
            loss: The loss.
            optimizer: Only the parameters of this optimizer get a gradient. ``None``: all parameters.
            fraction: Factor of the gradients. ``None``: 1.
        """
        own: list[torch.Tensor] | None = None
        if optimizer is not None:
            own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            if not own:
                raise LossError(f"every parameter of {type(optimizer).__name__} is frozen: this loss can move none")
        gradient = None
        if fraction is not None and (
            self.scaler or fraction.__class__ is not float or loss.__class__ is not torch.Tensor
        ):
            loss = loss * fraction
        elif fraction is not None:
            # The same gradients as those of `loss * fraction`, with one operation less. The tensor is new each time,
            # because a parameter may take a view of it as its gradient.
            gradient = loss.new_full((), fraction)
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward(gradient, inputs=own)  # type: ignore[no-untyped-call]

    def finish_gradients(self, optimizer: Optimizer, fractions: Any) -> bool:
        """Unscale the gradients, and divide them by the sum of fractions of the accumulation window.

        Args:
            optimizer: The optimizer that steps next.
            fractions: The sum of fractions. ``None``: divide nothing.

        Returns:
            True if gradients overflowed in fp16. To read it waits for the device, as ``GradScaler.step`` does.
        """
        if self.scaler is not None:
            # An optimizer may step several times in one window, as that of a GAN's critic.
            if id(optimizer) in self._unscaled:
                self._update_scale()
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))
        if fractions is not None:
            divide(optimizer, fractions)
        if self.scaler is None:
            return False
        return any(bool(found.item()) for found in self.scaler._found_inf_per_device(optimizer).values())

    def step(self, optimizer: Optimizer) -> None:
        """Step an optimizer, and clear the autocast cache, which holds the old weights."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
        torch.clear_autocast_cache()

    def end_window(self, *, skipped: bool = False) -> None:
        """Update the scale after an accumulation window.

        All optimizers of a window have the same scale.

        Args:
            skipped: True if the step was skipped. The scale stays the same.
        """
        if self._unscaled and skipped and self.scaler is not None:
            self._unscaled.clear()
            self.scaler.update(self.scaler.get_scale())
        elif self._unscaled:
            self._update_scale()

    def _update_scale(self) -> None:
        self._unscaled.clear()
        if self.scaler is not None:
            self.scaler.update()
