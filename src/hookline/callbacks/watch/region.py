"""The last lines of a terminal, written anew in place, with everything else above them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

from rich.cells import cell_len

CODES: Final = re.compile(r"\x1b\[[0-9;]*m")
ERASE_LINE, UP, PLAIN = "\x1b[2K", "\x1b[1A", "\x1b[0m"
NOBODY_THERE: Final = (OSError, ValueError, AttributeError)
"""What writing to a terminal that is gone raises, to a stream that is closed, to one that is ``None``."""


class Region:
    """Draws a text of some lines at the end of what the terminal shows, again and again.

    Not ``rich.live``: a print costs it as much as a redraw, and it hides the cursor, which a run that is killed
    outright could not show again. There is no lock in it: one that another thread holds while the workers of a
    loader are forked would leave them waiting for it for ever.
    """

    def __init__(self, stream: IO[str], size: Callable[[], tuple[int, int]]) -> None:
        self._stream = stream
        self._size = size
        self._text = ""

    def draw(self, text: str) -> None:
        """Take the place of the last text. What does not fit on the screen is cut off: it could not be erased."""
        erase, (_, height) = self._erase(), self._size()
        self._text = "\n".join(text.split("\n")[: max(1, height - 1)])
        with suppress(*NOBODY_THERE):
            self._write(erase + self._text)

    def print_above(self, text: str) -> None:
        reset = PLAIN if "\x1b" in text else ""
        self._write(f"{self._erase()}{text}{reset}\n{self._text}")

    def end(self) -> None:
        """Leave the last text where it is, and the cursor below it."""
        if self._text:
            self._text = ""
            with suppress(*NOBODY_THERE):
                self._write("\n")

    def _erase(self) -> str:
        """Go back to where the text begins. In a window that became narrower its lines have been broken."""
        if not self._text:
            return ""
        width = max(1, self._size()[0])
        lengths = [cell_len(CODES.sub("", line)) for line in self._text.split("\n")]
        rows = sum(max(1, math.ceil(length / width)) for length in lengths)
        return "\r" + ERASE_LINE + (UP + ERASE_LINE) * (rows - 1)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
