"""Gradients of a window, and what is wrong with a loss that cannot be differentiated."""

from __future__ import annotations

from typing import Any

import torch

from hookline.errors import LossError


def divide(optimizer: torch.optim.Optimizer, weight: Any) -> None:
    """Divide the gradients, once, by the sum of weights that they were added up with."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    dense = [p.grad for p in parameters if p.grad.layout == torch.strided]
    if dense:
        torch._foreach_div_(dense, weight)
    for parameter in parameters:
        if parameter.grad.layout != torch.strided:
            parameter.grad.div_(weight)


def explain_loss(loss: Any, where: str) -> LossError | None:
    """What is wrong with a loss, or ``None`` when it is fine and something else failed."""
    if not isinstance(loss, torch.Tensor):
        return LossError(
            f"the loss at {where} is a {type(loss).__name__} ({loss!r:.80}), not a tensor; "
            f"return the loss tensor itself, without .item()"
        )
    if loss.ndim:
        return LossError(
            f"the loss at {where} has the shape {tuple(loss.shape)}, not that of a scalar; "
            f"return its mean over the batch: loss.mean()"
        )
    if not loss.requires_grad:
        return LossError(
            f"the loss at {where} has no gradient: it was detached or computed under no_grad, "
            f"or every parameter is frozen"
        )
    return None
