"""``LogText``: the file ``log.txt``. Lines have a time, no secrets and no terminal codes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from hookline.callbacks.watch.progress.redirect import LONGEST
from hookline.records.redact import redact_text

MOST: Final = 50_000_000
"""Size of the file in bytes at which output of the program is left out."""
FULL: Final = "==== this file has {} MB: what the program prints is left out from here on ===="

_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # Colors and cursor movement.
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # Titles and links.
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class LogText:
    """Append lines to a file without raising errors.

    ``error`` keeps the first error, after which nothing is written. All methods may be called from any thread
    and from the workers of a loader: every write appends complete lines. Lines before ``begin`` are held back,
    so that they appear below the heading.
    """

    def __init__(self, path: Path) -> None:
        self.error: Exception | None = None
        self._file = path.open("a+b", buffering=0)
        self.goes_on = self._size() > 0
        # The machine may have crashed in the middle of a line.
        self._torn = self.goes_on and self._last_byte() != b"\n"
        self._held: list[str] | None = []

    def begin(self, heading: str) -> None:
        """Write the heading, once, and the lines that were held back."""
        held, self._held = self._held, None
        if held is None:
            return
        self._append(("\n" if self._torn else "") + _lines(f"==== {heading} ===="))
        if self.goes_on and self._size() >= MOST:
            self.say(_full())
        for lines in held:
            self._append(lines)

    def say(self, text: str) -> None:
        """Write text of Hookline. It is short, so the size limit does not apply."""
        self._write(text, limited=False)

    def keep(self, text: str) -> None:
        """Write output of the program, up to the size limit."""
        self._write(text, limited=True)

    def close(self) -> None:
        self.begin("begins")  # This does nothing if the heading was written.
        self._file.close()

    def _write(self, text: str, *, limited: bool) -> None:
        """Format the text, and append it or hold it back."""
        try:
            lines = _lines(text)
        except Exception as error:  # print must not fail, whatever its arguments are.
            self.error = self.error or error
        else:
            if self._held is not None:
                self._held.append(lines)
            else:
                self._append(lines, limited=limited)

    def _append(self, lines: str, *, limited: bool = False) -> None:
        """Append lines, unless the file is full or has failed."""
        if self.error is not None:
            return
        try:
            data = lines.encode("utf-8", "replace")
            room = MOST - self._size() if limited else len(data)
            if room <= 0:
                return
            if len(data) > room:  # The write that fills the file adds the notice.
                data = f"{data[:room].decode('utf-8', 'ignore')}\n{_lines(_full())}".encode()
            self._file.write(data)
        except (OSError, ValueError) as error:  # The disk is full, or the file is closed.
            self.error = error

    def _size(self) -> int:
        """Return the size of the file, including what the workers of a loader have written."""
        return os.fstat(self._file.fileno()).st_size

    def _last_byte(self) -> bytes:
        """Return the last byte of the file."""
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1)


def _lines(text: str) -> str:
    """Return the lines with the current time, without secrets and terminal codes."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = redact_text(plain_text(text)).split("\n")
    return "".join(f"{stamp} {line}".rstrip() + "\n" for line in lines)


def _full() -> str:
    """Return the line that says that the file is full."""
    return FULL.format(f"{MOST / 1e6:g}")


def plain_text(text: str) -> str:
    r"""Return text without terminal codes and control characters. Very long lines are cut.

    Example:
        >>> plain_text("\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link\x1b]8;;\x07\x08\n")
        'red link\n'
    """
    lines = _CODES.sub("", text).split("\n")
    return "\n".join(
        line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line) - LONGEST:,} more characters)"
        for line in lines
    )
