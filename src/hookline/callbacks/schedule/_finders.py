"""Figures of the finders, drawn without pyplot so that the user's backend does not change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookline.errors import SetupError

BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#f58518", "#54a24b", "#e45756", "#777777"


def need_matplotlib(who: str) -> None:
    """Raise if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise SetupError(f"{who} draws its curve with matplotlib: pip install 'hookline[plots]', or {who}(plot=False)")


def lr_figure(
    lrs: Sequence[float], raw: Sequence[float], smooth: Sequence[float], found: int | None, log_x: bool
) -> Any:
    """Draw the losses over the learning rates, with the suggestion."""
    from matplotlib.ticker import NullLocator

    figure, axes = _figure()
    axes.plot(lrs, _drawable(raw), color=BLUE, linewidth=0.9, alpha=0.4, label="loss")
    axes.plot(lrs, _drawable(smooth), color=BLUE, linewidth=1.8, label="smoothed")
    if log_x:
        axes.set_xscale("log")
        # Minor ticks without labels would take most of the drawing time.
        axes.xaxis.set_minor_locator(NullLocator())
    if found is not None:
        axes.plot([lrs[found]], [smooth[found]], "o", color=ORANGE, markersize=8, label=f"suggestion {lrs[found]:.3g}")
        axes.axvline(lrs[found], color=ORANGE, linewidth=0.8, alpha=0.6)
    finite = [value for value in _drawable(smooth) if value == value]
    if finite:
        low = min(value for value in (*finite, *_drawable(raw)) if value == value)
        room = (finite[0] - low) or abs(low) or 1.0
        # A diverging loss would flatten the rest of the curve.
        axes.set_ylim(low - 0.05 * room, finite[0] + 0.5 * room)
    axes.set_xlabel("learning rate", fontsize=9)
    axes.set_ylabel("loss", fontsize=9)
    axes.set_title("LRFinder", loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)
    return figure


def size_figure(sizes: Sequence[int], speeds: Sequence[float], failed: Sequence[int], chosen: int | None) -> Any:
    """Draw samples per second over batch sizes. Crosses mark sizes that did not fit."""
    from matplotlib.ticker import FuncFormatter

    figure, axes = _figure()
    axes.plot(sizes, speeds, color=BLUE, linewidth=1.8, marker="o", markersize=4, label="fits")
    if failed:
        axes.plot(
            failed, [0.03] * len(failed), "x", color=RED, transform=axes.get_xaxis_transform(), label="out of memory"
        )
    if chosen is not None:
        axes.axvline(chosen, color=ORANGE, linewidth=1.0, alpha=0.8, label=f"found {chosen}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size", fontsize=9)
    axes.set_ylabel("samples a second", fontsize=9)
    axes.set_title("BatchSizeFinder", loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)
    return figure


def save_png(figure: Any, path: Path) -> None:
    """Save a figure atomically, because the user may have the file open."""
    fresh = path.with_name(f".{path.name}")
    figure.savefig(fresh, format="png")
    fresh.replace(path)


def _figure() -> tuple[Any, Any]:
    """Return an empty figure and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), dpi=110)
    FigureCanvasAgg(figure)
    # The layout is fixed because an automatic layout takes longer than drawing.
    axes = figure.add_axes((0.11, 0.13, 0.86, 0.78))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=3)
    return figure, axes


def _drawable(values: Sequence[float]) -> list[float]:
    """Replace values that cannot be drawn by NaN."""
    return [value if math.isfinite(value) and abs(value) < 1e100 else math.nan for value in values]
