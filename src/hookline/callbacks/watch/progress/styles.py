"""Styles of ``ProgressBar``. A new style is one entry in ``STYLES``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from hookline.callbacks.watch.progress.display import ProgressDisplay
from hookline.callbacks.watch.progress.plain_display import PlainDisplay
from hookline.callbacks.watch.progress.redirect import has_bars, is_terminal
from hookline.errors import ArgumentError, SetupError


@dataclass(frozen=True, slots=True)
class Style:
    """How to create a display, and how often to update it by default."""

    make: Callable[[], ProgressDisplay]
    interval: float
    """Seconds between two updates."""
    burst: int = 10
    """Number of epochs and evaluations that are shown at once when they end between two updates."""
    thin: bool = False
    """True if updates become less frequent in a long run."""


def plain(write: Callable[[str], None] | None = None) -> Style:
    """Return the style that prints lines."""
    return Style(lambda: PlainDisplay(write), 10.0, burst=60, thin=True)


def notebook() -> Style:
    """Return the style for a notebook cell, or lines without IPython."""
    if shell() is None:
        return plain()
    from hookline.callbacks.watch.progress.notebook_display import NotebookDisplay

    return Style(NotebookDisplay, 0.5)  # More frequent updates make the page unresponsive.


def rich() -> Style:
    """Return bars for a terminal or notebook, or lines if another run already shows bars."""
    if has_bars(sys.stdout):
        return plain()
    if in_notebook():
        return notebook()
    from hookline.callbacks.watch.progress.rich_display import (
        RichDisplay,  # Imported here because importing rich is slow.
    )

    return Style(RichDisplay, 0.1)


def tqdm() -> Style:
    """Return the bars of tqdm in a terminal, otherwise as ``auto``."""
    if in_notebook() or has_bars(sys.stdout) or not can_move(sys.stdout, os.environ):
        return auto()
    from hookline.callbacks.watch.progress.tqdm_display import TqdmDisplay

    return Style(TqdmDisplay, 0.1)


def auto() -> Style:
    """Return bars where they can be redrawn, otherwise lines.

    In a log, a bar would be thousands of lines.
    """
    return rich() if in_notebook() or can_move(sys.stdout, os.environ) else plain()


STYLES: Final[Mapping[str, Callable[[], Style]]] = MappingProxyType(
    {"auto": auto, "rich": rich, "plain": plain, "notebook": notebook, "tqdm": tqdm}
)


def check(style: object) -> None:
    """Raise an error unless the style is a known name, ``None`` or a custom display."""
    if style is None or (isinstance(style, str) and style in STYLES):
        if style == "tqdm" and find_spec("tqdm") is None:
            raise SetupError(
                "ProgressBar(style='tqdm') needs tqdm, which is not installed: pip install 'hookline[tqdm]'"
            )
        return
    if isinstance(style, type):
        raise ArgumentError(f"ProgressBar(style={style.__name__}): is a class. Write {style.__name__}(…).")
    if isinstance(style, ProgressDisplay):
        return
    known = ", ".join(repr(name) for name in STYLES)
    close = get_close_matches(style, STYLES, n=1) if isinstance(style, str) else []
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise ArgumentError(
        f"ProgressBar(style={style!r}): no such style. {hint}Use {known}, None for no bar, "
        f"or an object with start(run), update(progress) and close()."
    )


def choose(style: Any) -> Style:
    """Return the style for a checked argument."""
    return STYLES[style]() if isinstance(style, str) else Style(lambda: style, 0.1)


def can_move(stream: Any, environ: Mapping[str, str]) -> bool:
    """True if bars can be redrawn on this stream: an interactive terminal, and not CI."""
    dumb = environ.get("TERM", "").lower() in ("dumb", "unknown")
    unattended = environ.get("CI", "").lower() not in ("", "0", "false")
    return is_terminal(stream) and not dumb and not unattended


def in_notebook() -> bool:
    """True in the kernel of a notebook: Jupyter, Colab, VS Code.

    False for IPython in a terminal.
    """
    return hasattr(shell(), "kernel")


def shell() -> Any:
    """Return the IPython shell that runs this program, or ``None``."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
