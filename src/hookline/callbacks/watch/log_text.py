"""``LogText``: the file ``log.txt``. Each line has its time, no secrets and no codes for a terminal."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from hookline.callbacks.watch.redirect import LONGEST
from hookline.records.redact import redact_text

MOST: Final = 50_000_000
"""The file may have so many bytes; then what the program prints is left out."""
FULL: Final = "==== this file has {} MB: what the program prints is left out from here on ===="

_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, and moves of the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class LogText:
    """Appends to a file. To write never raises: the first error is kept in ``error``, and nothing more is written.

    It may be used in any thread, and in the workers of a loader: every write is one whole piece at the end of the file.
    What comes before ``begin`` is held back, so that it stands below the heading.
    """

    def __init__(self, path: Path) -> None:
        self.error: Exception | None = None
        self._file = path.open("a+b", buffering=0)
        self.goes_on = self._size() > 0
        self._torn = self.goes_on and self._last_byte() != b"\n"  # a machine that went down
        self._held: list[str] | None = []

    def begin(self, heading: str) -> None:
        """Write the heading, once, and what was held back for it."""
        held, self._held = self._held, None
        if held is None:
            return
        self._append(("\n" if self._torn else "") + _lines(f"==== {heading} ===="))
        if self.goes_on and self._size() >= MOST:
            self.say(_full())
        for lines in held:
            self._append(lines)

    def say(self, text: str) -> None:
        """A text of ours; there are few of them, so they are written to the end."""
        self._write(text, limited=False)

    def keep(self, text: str) -> None:
        """A text of the program's: as long as there is room."""
        self._write(text, limited=True)

    def close(self) -> None:
        self.begin("begins")  # if nobody has said so
        self._file.close()

    def _write(self, text: str, *, limited: bool) -> None:
        try:
            lines = _lines(text)
        except Exception as error:  # print must go on, whatever it was given
            self.error = self.error or error
        else:
            if self._held is not None:
                self._held.append(lines)
            else:
                self._append(lines, limited=limited)

    def _append(self, lines: str, *, limited: bool = False) -> None:
        if self.error is not None:
            return
        try:
            data = lines.encode("utf-8", "replace")
            room = MOST - self._size() if limited else len(data)
            if room <= 0:
                return
            if len(data) > room:  # whoever fills the file says so
                data = f"{data[:room].decode('utf-8', 'ignore')}\n{_lines(_full())}".encode()
            self._file.write(data)
        except (OSError, ValueError) as error:  # a full disk; closed
            self.error = error

    def _size(self) -> int:
        """Of all that was written, also by the workers of a loader."""
        return os.fstat(self._file.fileno()).st_size

    def _last_byte(self) -> bytes:
        self._file.seek(-1, os.SEEK_END)
        return self._file.read(1)


def _lines(text: str) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = redact_text(plain_text(text)).split("\n")
    return "".join(f"{stamp} {line}".rstrip() + "\n" for line in lines)


def _full() -> str:
    return FULL.format(f"{MOST / 1e6:g}")


def plain_text(text: str) -> str:
    r"""A text without codes and control characters; of a line that is very long, the beginning.

    >>> plain_text("\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link\x1b]8;;\x07\x08\n")
    'red link\n'
    """
    lines = _CODES.sub("", text).split("\n")
    return "\n".join(
        line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line) - LONGEST:,} more characters)"
        for line in lines
    )
