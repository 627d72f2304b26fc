"""Measure and draw the distribution of the gradients of each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 61
"""Number of bins. It is odd, so that zero is in the middle of a bin."""
MOST = 24
"""Largest number of panels in a figure."""
COLOR = "#4c78a8"


@dataclass(frozen=True, slots=True)
class Spread:
    """Histogram of the gradients of one layer, from ``-largest`` to ``largest``."""

    counts: tuple[float, ...]
    largest: float
    std: float
    zeros: float
    """Fraction of the gradient elements that are exactly zero."""
    odd: int
    """Number of elements that are NaN or infinite."""


def measure(gradients: Sequence[Tensor]) -> Tensor:
    """Return the values of a ``Spread`` as one tensor, without synchronizing with the device."""
    values = torch.cat([gradient.flatten() for gradient in gradients])
    if values.is_complex():
        values = torch.view_as_real(values).flatten()
    finite = values.isfinite()
    sound = torch.where(finite, values, 0)
    largest = sound.abs().amax()
    # The value 2 is outside the range of the histogram, so it is not counted.
    scaled = torch.where(finite, sound / torch.where(largest == 0, 1, largest), 2)
    counts = torch.histc(scaled, BINS, -1, 1)
    odd = (~finite).sum()
    present = (values.numel() - odd).clamp(min=1)
    mean = sound.sum() / present
    std = (torch.where(finite, sound - mean, 0).square().sum() / present).sqrt()
    zeros = (values == 0).sum() / present
    return torch.cat([counts, torch.stack([part.to(counts) for part in (largest, std, zeros, odd)])])


def read(measured: Tensor) -> Spread:
    """Read a measured tensor from the device."""
    *counts, largest, std, zeros, odd = measured.tolist()
    return Spread(tuple(counts), largest, std, zeros, int(odd))


def draw(spreads: dict[str, Spread], title: str) -> Any:
    """Draw the figure. It does not use pyplot, so the user's figures and backend do not change."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = dict(list(spreads.items())[:MOST])
    columns = min(len(shown), 2 if len(shown) <= 4 else 3) or 1
    rows = math.ceil(len(shown) / columns)
    width, height = 3.9 * columns, 2.1 * rows + 0.4
    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    # The layout is fixed, in inches, because an automatic layout takes longer than drawing.
    left, right, top, bottom = 0.5 / width, 1 - 0.25 / width, 1 - 0.6 / height, 0.3 / height
    figure.subplots_adjust(left, bottom, right, top, wspace=0.22, hspace=0.42)
    left_out = f" ({MOST} of {len(spreads)} layers; choose with layers=)" if len(spreads) > MOST else ""
    figure.suptitle(
        title + left_out,
        x=0.1 / width,
        y=1 - 0.08 / height,
        ha="left",
        va="top",
        fontsize=10,
        color="#777777",
        parse_math=False,
    )
    for number, (layer, spread) in enumerate(shown.items()):
        _panel(figure.add_subplot(rows, columns, number + 1), layer, spread)
    return figure


def _panel(axes: Any, layer: str, spread: Spread) -> None:
    """Draw the histogram of one layer."""
    half = spread.largest or 1.0
    edges = [half * (2 * number / BINS - 1) for number in range(BINS + 1)]
    axes.stairs([math.log10(1 + count) for count in spread.counts], edges, fill=True, color=COLOR)
    powers = range(max(1, math.ceil(math.log10(1 + max(spread.counts)))) + 1)
    axes.set_yticks([0.0, *(math.log10(1 + 10**power) for power in powers)], ["0", *(f"{10**p:,}" for p in powers)])
    axes.set_ylim(0, math.log10(1 + 2 * max(1, *spread.counts)))
    axes.set_xlim(-half, half)
    axes.set_xticks([-half, 0.0, half], [f"{-half:.2g}", "0", f"{half:.2g}"])
    axes.set_title(layer, loc="left", y=1.0, fontsize=9, fontweight="bold", parse_math=False)
    parts = [f"std {spread.std:.2g}"]
    parts += [f"{spread.zeros:.0%} zeros"] if spread.zeros else []
    parts += [f"{spread.odd} not finite"] if spread.odd else []
    color = "#e45756" if spread.odd else "#777777"
    axes.set_title(", ".join(parts), loc="right", y=1.0, fontsize=8, color=color)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7, length=3)
