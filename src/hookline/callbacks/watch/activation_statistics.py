"""Statistics of the outputs of a module. Nothing is transferred from the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STATISTICS = ("norm", "mean", "max", "std", "skewness", "kurtosis", "zeros")


def measure(output: Tensor, statistics: Sequence[str]) -> dict[str, Tensor]:
    """Return statistics of all values of a tensor.

    Args:
        output: Tensor to measure. A complex tensor is measured as pairs of real numbers.
        statistics: Names from ``STATISTICS``. ``max`` is the largest magnitude. ``skewness`` is the third
            central moment divided by the cubed standard deviation: 0 if symmetric. ``kurtosis`` is the fourth
            central moment divided by the squared variance: 3 for a normal distribution.

    Example:
        >>> values = measure(torch.tensor([0.0, 0.0, 3.0, -4.0]), ("norm", "max", "zeros"))
        >>> {name: value.item() for name, value in values.items()}
        {'norm': 5.0, 'max': 4.0, 'zeros': 0.5}
    """
    values = output.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    moments = _moments(values) if {"std", "skewness", "kurtosis"}.intersection(statistics) else {}
    return {name: moments[name] if name in moments else _simple(name, values) for name in statistics}


def _simple(name: str, values: Tensor) -> Tensor:
    """Return a statistic that needs no central moments."""
    if name == "mean":
        return values.mean()
    if name == "zeros":
        return 1 - torch.count_nonzero(values) / values.numel()
    found: Tensor = torch.linalg.vector_norm(values, torch.inf if name == "max" else 2)
    return found


def _moments(values: Tensor) -> dict[str, Tensor]:
    """Return the statistics that need central moments."""
    centred = values - values.mean()
    squared = centred.square()
    variance = squared.mean()
    return {
        "std": variance.sqrt(),
        "skewness": (squared * centred).mean() / variance**1.5,
        "kurtosis": squared.square().mean() / variance.square(),
    }
