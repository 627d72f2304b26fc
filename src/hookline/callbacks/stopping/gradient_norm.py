"""Norm of all gradients, and the names of gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hookline.callbacks.whole import whole

if TYPE_CHECKING:
    from hookline.run import Run


def gradients_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the current gradients. For a sparse gradient, return its values."""
    return [
        parameter.grad if parameter.grad.layout == torch.strided else parameter.grad.coalesce().values()
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients as a scalar tensor on their device.

    The norm is NaN or infinite if one of the gradients is.

    Example:
        >>> total_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    return whole(nn.utils.get_total_norm(gradients)) if gradients else torch.zeros(())


def not_finite(run: Run) -> Iterator[str]:
    """Yield the names of parameters with NaN (``nan``) or infinite (``inf``) gradients.

    The function is slow. Use it only for a message.
    """
    for name, parameter in run.model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        values = gradient if gradient.layout == torch.strided else gradient.coalesce().values()
        if not bool(torch.isfinite(values).all()):
            yield f"{name} ({'nan' if bool(torch.isnan(values).any()) else 'inf'})"
