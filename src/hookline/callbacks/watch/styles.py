"""Which display a style means, here and now. A new style is one entry in ``STYLES``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from hookline.callbacks.watch.display import ProgressDisplay
from hookline.callbacks.watch.plain_display import PlainDisplay
from hookline.callbacks.watch.redirect import has_bars, is_terminal
from hookline.errors import RegistrationError, SetupError


@dataclass(frozen=True, slots=True)
class Style:
    """How to make a display, and how often it is updated unless the user says so."""

    make: Callable[[], ProgressDisplay]
    interval: float
    """Seconds."""
    burst: int = 10
    """So many epochs and evaluations that end between two updates are shown at once."""
    thin: bool = False
    """Whether updates become rarer in a long run."""


def plain(write: Callable[[str], None] | None = None) -> Style:
    return Style(lambda: PlainDisplay(write), 10.0, burst=60, thin=True)


def notebook() -> Style:
    """An output of the cell; lines where there is no IPython to show one."""
    if shell() is None:
        return plain()
    from hookline.callbacks.watch.notebook_display import NotebookDisplay

    return Style(NotebookDisplay, 0.5)  # a page that is redrawn more often stops answering


def rich() -> Style:
    """Bars that move in place, in a terminal or in a notebook. Inside another run, whose bars are there, lines."""
    if has_bars(sys.stdout):
        return plain()
    if in_notebook():
        return notebook()
    from hookline.callbacks.watch.rich_display import RichDisplay  # here, because rich takes long to import

    return Style(RichDisplay, 0.1)


def tqdm() -> Style:
    """The same places as ``auto``, with the bars of tqdm in a terminal."""
    if in_notebook() or has_bars(sys.stdout) or not can_move(sys.stdout, os.environ):
        return auto()
    from hookline.callbacks.watch.tqdm_display import TqdmDisplay

    return Style(TqdmDisplay, 0.1)


def auto() -> Style:
    """Bars where they can move, else lines: in a log a bar would be thousands of lines."""
    return rich() if in_notebook() or can_move(sys.stdout, os.environ) else plain()


STYLES: Final[Mapping[str, Callable[[], Style]]] = MappingProxyType(
    {"auto": auto, "rich": rich, "plain": plain, "notebook": notebook, "tqdm": tqdm}
)


def check(style: object) -> None:
    """A style is one of the names, ``None``, or a display of the user's own."""
    if style is None or (isinstance(style, str) and style in STYLES):
        if style == "tqdm" and find_spec("tqdm") is None:
            raise SetupError(
                "ProgressBar(style='tqdm') needs tqdm, which is not installed: pip install 'hookline[tqdm]'"
            )
        return
    if isinstance(style, type):
        raise RegistrationError(f"ProgressBar(style={style.__name__}): that is a class; write {style.__name__}(…)")
    if isinstance(style, ProgressDisplay):
        return
    known = ", ".join(repr(name) for name in STYLES)
    close = get_close_matches(style, STYLES, n=1) if isinstance(style, str) else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise RegistrationError(
        f"ProgressBar(style={style!r}): no such style; {hint}there is {known}, None for no bar, "
        f"or an object of your own with start(run), update(progress) and close()"
    )


def choose(style: Any) -> Style:
    """The display of a style that was checked."""
    return STYLES[style]() if isinstance(style, str) else Style(lambda: style, 0.1)


def can_move(stream: Any, environ: Mapping[str, str]) -> bool:
    """Whether bars can move on this stream: a terminal with a cursor, and a person before it."""
    dumb = environ.get("TERM", "").lower() in ("dumb", "unknown")
    unattended = environ.get("CI", "").lower() not in ("", "0", "false")
    return is_terminal(stream) and not dumb and not unattended


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook: Jupyter, Colab, VS Code; not IPython in a terminal."""
    return hasattr(shell(), "kernel")


def shell() -> Any:
    """The IPython that runs this program, if one does."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
