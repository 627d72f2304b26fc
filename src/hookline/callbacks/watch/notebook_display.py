"""``NotebookDisplay``: bars in the output of a notebook's cell, written anew in place."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookline.callbacks.watch.display import Bar, Progress
from hookline.callbacks.watch.plain_display import how_fast, what_is_new
from hookline.callbacks.watch.wording import beside_bar, number

if TYPE_CHECKING:
    from hookline.run import Run


class NotebookDisplay:
    """One output of the cell, replaced at each update; prints of the cell stay where they are.

    It needs what every notebook has. Rich would need ``ipywidgets``, and without it show nothing.
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
    """What the notebook shows: HTML, or the plain line where it can show only text."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __repr__(self) -> str:
        return " ".join(part for part in (what_is_new(self._progress), how_fast(self._progress)) if part)

    def _repr_html_(self) -> str:
        progress = self._progress
        over = bool(progress.note)
        rows = "".join(
            _row(bar, beside_bar(bar, progress.seconds if index == 0 else None, over))
            for index, bar in enumerate(progress.bars)
        )
        words = [escape(progress.beside)] if progress.beside else []
        words += [f"{escape(name)} <b>{escape(number(value))}</b>" for name, value in progress.metrics.items()]
        words += [f"<i>{escape(progress.note)}</i>"] if progress.note else []
        return f"<table>{rows}</table><div>{' &nbsp; '.join(words)}</div>"


def _row(bar: Bar, words: str) -> str:
    value = "" if bar.share is None else f' value="{bar.share:.4f}"'
    cells = (escape(bar.name), escape(bar.count), f'<progress max="1"{value}></progress>', escape(words))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
