"""The last lines of a terminal, redrawn in place below all other output."""

from __future__ import annotations

import math
import mmap
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType

from hookline.callbacks.watch.progress.redirect import above, beneath_tees, is_terminal

CODES: Final = re.compile(r"\x1b\[[0-9;]*m")
STEERING: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f]")
"""Codes that set colors or move the cursor."""
ERASE_LINE, UP, PLAIN = "\x1b[2K", "\x1b[1A", "\x1b[0m"
NOBODY_THERE: Final = (OSError, ValueError, AttributeError)
"""Errors of writing to a terminal that is gone, to a closed stream, and to ``None``."""


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


class SharedText:
    """Text in shared memory. Processes that are forked later, such as loader workers, see it."""

    def __init__(self, size: int = 65536) -> None:
        self._memory = mmap.mmap(-1, size)
        self._room = size - 4

    def set(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[: self._room]
        self._memory[4 : 4 + len(data)] = data
        self._memory[:4] = len(data).to_bytes(4, "big")

    def get(self) -> str:
        length = int.from_bytes(self._memory[:4], "big")
        return self._memory[4 : 4 + length].decode("utf-8", "replace")


class Region:
    """Draw some lines at the end of a terminal, and replace them at each update.

    This is not ``rich.live`` because a print there costs as much as a redraw, and because it hides the cursor,
    which a killed process cannot show again. There is no lock: a worker of a loader that is forked while
    another thread holds a lock would wait for it forever.
    """

    def __init__(self, stream: IO[str], size: Callable[[], tuple[int, int]]) -> None:
        self._stream = stream
        self._size = size
        self._text = SharedText()
        self._held = SharedText()  # An unfinished line of the program above the region.

    def draw(self, text: str) -> None:
        """Replace the lines.

        Lines that do not fit on the screen are cut, because they could not be erased.
        """
        erase, held, (_, height) = self._erase(), self._held.get(), self._size()
        text = "\n".join(text.split("\n")[: max(1, height - 1 - bool(held))])
        self._text.set(text)
        with suppress(*NOBODY_THERE):
            self._write(erase + held + text)

    def print_above(self, text: str) -> None:
        """Print text above the lines. A worker process may call this: it shares the current lines."""
        erase, reset = self._erase(), PLAIN if "\x1b" in text else ""
        self._held.set("")  # The text is most likely the end of the unfinished line.
        self._write(f"{erase}{text}{reset}\n{self._text.get()}")

    def hold(self, text: str) -> None:
        """Show a line that may continue or be overwritten, as far as it fits on one row."""
        erase, line = self._erase(), STEERING.sub("", text)
        self._held.set(set_cell_size(line, min(cell_len(line), self._size()[0] - 1)) + "\n")
        self._write(erase + self._held.get() + self._text.get())

    def lift(self) -> None:
        """Remove the lines until the next ``draw``, because other code writes to the terminal."""
        with suppress(*NOBODY_THERE):
            self._write(self._erase())
        self._text.set("")
        self._held.set("")

    def end(self) -> None:
        """Keep the last lines on the screen, and move the cursor below them."""
        text = self._text.get()
        self._text.set("")
        self._held.set("")
        if text:
            with suppress(*NOBODY_THERE):
                self._write("\n")

    def _erase(self) -> str:
        """Return the codes that erase the lines.

        In a window that became narrower, lines take several rows.
        """
        text = self._held.get() + self._text.get()
        if not text:
            return ""
        width = max(1, self._size()[0])
        lengths = [cell_len(CODES.sub("", line)) for line in text.split("\n")]
        rows = sum(max(1, math.ceil(length / width)) for length in lengths)
        return "\r" + ERASE_LINE + (UP + ERASE_LINE) * (rows - 1)

    def _write(self, text: str) -> None:
        """Write to the terminal and flush."""
        self._stream.write(text)
        self._stream.flush()
