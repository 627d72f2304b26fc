"""The last lines of a terminal, written anew in place, with everything else above them."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

from rich.cells import cell_len, set_cell_size

CODES: Final = re.compile(r"\x1b\[[0-9;]*m")
STEERING: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f]")
"""What may move the cursor, and colours."""
ERASE_LINE, UP, PLAIN = "\x1b[2K", "\x1b[1A", "\x1b[0m"
NOBODY_THERE: Final = (OSError, ValueError, AttributeError)
"""What writing to a terminal that is gone raises, to a stream that is closed, to one that is ``None``."""


class SharedText:
    """A text that the workers of a loader see, too: processes that were forked after it was made."""

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
    """Draws a text of some lines at the end of what the terminal shows, again and again.

    Not ``rich.live``: a print costs it as much as a redraw, and it hides the cursor, which a run that is killed
    outright could not show again. There is no lock in it: one that another thread holds while the workers of a
    loader are forked would leave them waiting for it for ever.
    """

    def __init__(self, stream: IO[str], size: Callable[[], tuple[int, int]]) -> None:
        self._stream = stream
        self._size = size
        self._text = SharedText()
        self._held = SharedText()  # a line of the program above it, which has no end yet

    def draw(self, text: str) -> None:
        """Take the place of the last text. What does not fit on the screen is cut off: it could not be erased."""
        erase, held, (_, height) = self._erase(), self._held.get(), self._size()
        text = "\n".join(text.split("\n")[: max(1, height - 1 - bool(held))])
        self._text.set(text)
        with suppress(*NOBODY_THERE):
            self._write(erase + held + text)

    def print_above(self, text: str) -> None:
        """Also from a worker: it sees what is on the screen now, and whether anything is."""
        erase, reset = self._erase(), PLAIN if "\x1b" in text else ""
        self._held.set("")  # most likely this is its end
        self._write(f"{erase}{text}{reset}\n{self._text.get()}")

    def hold(self, text: str) -> None:
        """Show a line that may go on, or be written over; as much of it as fits on one row."""
        erase, line = self._erase(), STEERING.sub("", text)
        self._held.set(set_cell_size(line, min(cell_len(line), self._size()[0] - 1)) + "\n")
        self._write(erase + self._held.get() + self._text.get())

    def lift(self) -> None:
        """Show nothing, until it is drawn again: somebody else writes to the terminal."""
        with suppress(*NOBODY_THERE):
            self._write(self._erase())
        self._text.set("")
        self._held.set("")

    def end(self) -> None:
        """Leave the last text where it is, and the cursor below it."""
        text = self._text.get()
        self._text.set("")
        self._held.set("")
        if text:
            with suppress(*NOBODY_THERE):
                self._write("\n")

    def _erase(self) -> str:
        """Go back to where it begins. In a window that became narrower its lines have been broken."""
        text = self._held.get() + self._text.get()
        if not text:
            return ""
        width = max(1, self._size()[0])
        lengths = [cell_len(CODES.sub("", line)) for line in text.split("\n")]
        rows = sum(max(1, math.ceil(length / width)) for length in lengths)
        return "\r" + ERASE_LINE + (UP + ERASE_LINE) * (rows - 1)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
