"""``Screen``: the terminal of a display that moves in place."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress

from rich.console import Console, RenderableType

from hookline.callbacks.watch.redirect import above, beneath_tees, is_terminal
from hookline.callbacks.watch.region import NOBODY_THERE, Region


class Screen:
    """Shows one text in place of the last. What the program prints between ``open`` and ``close`` appears above it.

    Nothing moves unless it is told to: there is no thread. Where the cursor cannot move (a file, a dumb terminal)
    only the last text is shown, at the end.
    """

    def __init__(self) -> None:
        stream = beneath_tees(sys.stdout)
        self.console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._region = Region(stream, lambda: self.console.size)
        self._moves = is_terminal(stream) and not self.console.is_dumb_terminal
        self._redirected = ExitStack()
        self._last: RenderableType | None = None

    def open(self) -> None:
        if self._moves:
            self._redirected.enter_context(above(self._region))

    def show(self, frame: RenderableType) -> None:
        self._last = frame
        if self._moves:
            self._draw(frame)

    def close(self) -> None:
        try:
            if self._last is not None and not self._moves:
                self._draw(self._last)
            self._region.end()
        finally:
            self._redirected.close()

    def _draw(self, frame: RenderableType) -> None:
        with suppress(*NOBODY_THERE):  # a capture flushes the terminal
            with self.console.capture() as captured:
                self.console.print(frame)
            self._region.draw(captured.get().rstrip("\n"))


def safe(text: str, console: Console) -> str:
    """What this terminal can show: a metric may be called anything, and not every terminal is UTF-8."""
    return text.encode(console.encoding, "replace").decode(console.encoding)
