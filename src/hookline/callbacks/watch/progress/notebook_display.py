"""``NotebookDisplay``: bars in the output of a notebook cell."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hookline.callbacks._text import format_metric
from hookline.callbacks.watch.progress.display import Bar, Progress
from hookline.callbacks.watch.progress.plain_display import how_fast, in_words
from hookline.callbacks.watch.progress.wording import beside_bar

if TYPE_CHECKING:
    from hookline.run import Run

FONT: Final = "font-variant-numeric:tabular-nums"
"""Digits of equal width, so that changing numbers do not move the text next to them."""
TABLE: Final = "border-collapse:collapse;margin:0;font-size:inherit;color:inherit"
ROW: Final = '<tr style="background:none">'
LEFT: Final = "text-align:left;padding:1px 1em 1px 0"
RIGHT: Final = "text-align:right;padding:1px 1em 1px 0"
DIM: Final = f"{LEFT};opacity:0.7"
GAP: Final = " &nbsp;&nbsp; "


class NotebookDisplay:
    """Bars in one output of the cell, which every update replaces.

    Prints of the cell stay where they are. This uses only IPython: rich would need ``ipywidgets``, and show
    nothing without it.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self, run: Run) -> None:
        self._handle = None

    def update(self, progress: Progress) -> None:
        if self._handle is None:
            self._handle = import_module("IPython.display").display(Frame(progress), display_id=True)
        else:
            self._handle.update(Frame(progress))

    def close(self) -> None:
        self._handle = None


class Frame:
    """Content of the output: HTML, or the plain line where only text can be shown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __repr__(self) -> str:
        return " ".join(part for part in (in_words(self._progress), how_fast(self._progress)) if part)

    def _repr_html_(self) -> str:
        progress = self._progress
        rows = "".join(_row(bar, progress, whole=index == 0) for index, bar in enumerate(progress.bars))
        words = [escape(progress.beside)] if progress.beside else []
        words += [f"{escape(name)} <b>{escape(format_metric(value))}</b>" for name, value in progress.metrics.items()]
        words += [f"<i>{escape(progress.note)}</i>"] if progress.note else []
        return f'<div style="{FONT}"><table style="{TABLE}">{rows}</table><div>{GAP.join(words)}</div></div>'


def _row(bar: Bar, progress: Progress, *, whole: bool) -> str:
    """Return a bar as a row of an HTML table."""
    share = 1.0 if progress.over and bar.share is None else bar.share  # An indeterminate bar would be animated forever.
    value = "" if share is None else f' value="{share:.4f}"'
    line = f'<progress max="1"{value} style="width:20em;vertical-align:middle"></progress>'
    words = beside_bar(bar, progress.seconds if whole else None, progress.over or bool(progress.note))
    cells = ((LEFT, escape(bar.name)), (RIGHT, escape(bar.count)), (LEFT, line), (DIM, escape(words)))
    return ROW + "".join(f'<td style="{style}">{text}</td>' for style, text in cells) + "</tr>"
