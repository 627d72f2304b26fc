"""Figures without pyplot, so that the user's figures and backend do not change."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hookline.callbacks._paths import replacing
from hookline.errors import ArgumentError, SetupError

FORMATS = ("png", "pdf", "svg")
MAX_PANELS = 24
BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#f58518", "#54a24b", "#e45756", "#777777"


def check_matplotlib(who: str, hint: str = "") -> None:
    """Raise if matplotlib is not installed.

    Args:
        who: Name of the callback, for the error.
        hint: Another solution, for the error.
    """
    if find_spec("matplotlib") is None:
        raise SetupError(f"{who} needs matplotlib: pip install 'hookline[plots]'{hint}")


def read_formats(formats: str | Iterable[str], who: str) -> tuple[str, ...]:
    """Return the argument ``formats`` as a tuple, or raise for an unknown format."""
    found = (formats,) if isinstance(formats, str) else tuple(formats)
    if not found or not set(found) <= set(FORMATS):
        raise ArgumentError(f"{who}(formats={found!r}): use one or more of {', '.join(FORMATS)}.")
    return found


def new_figure(width: float, height: float, *, dpi: int, layout: Literal["constrained"] | None = None) -> Any:
    """Return an empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def grid_of(count: int) -> tuple[int, int]:
    """Return the rows and columns for a number of panels.

    Example:
        >>> grid_of(1), grid_of(4), grid_of(7)
        ((1, 1), (2, 2), (3, 3))
    """
    columns = min(count, 2 if count <= 4 else 3) or 1
    return math.ceil(count / columns) or 1, columns


def style_axes(axes: Any, label_size: float = 8) -> None:
    """Draw a light grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=label_size, length=3)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix, atomically: an image viewer may have the file open."""
    with replacing(path) as fresh, quiet_fonts():
        figure.savefig(fresh, format=path.suffix[1:])


def quiet_fonts() -> warnings.catch_warnings:
    """Return a context without the warnings about characters that the font lacks."""
    return warnings.catch_warnings(action="ignore")
