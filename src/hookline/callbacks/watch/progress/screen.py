"""``Screen``: the terminal of a display that is redrawn in place."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress

from rich.console import Console, RenderableType

from hookline.callbacks.watch.progress.redirect import above, beneath_tees, is_terminal
from hookline.callbacks.watch.progress.region import NOBODY_THERE, Region


class Screen:
    """Show one text and replace it at each update. Output of the program appears above.

    There is no thread: the text changes only when ``show`` is called. If the cursor cannot move (a file, a dumb
    terminal), only the last text is shown, at the end.
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
        """Render the text and draw it."""
        with suppress(*NOBODY_THERE):  # The capture flushes the terminal, which may be gone.
            with self.console.capture() as captured:
                self.console.print(frame)
            self._region.draw(captured.get().rstrip("\n"))


def safe(text: str, console: Console) -> str:
    """Return the text with characters that this terminal cannot show replaced."""
    return text.encode(console.encoding, "replace").decode(console.encoding)
