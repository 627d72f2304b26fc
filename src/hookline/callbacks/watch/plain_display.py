"""``PlainDisplay``: one line of text at a time, for logs and everything else that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hookline.callbacks.watch.display import Progress
from hookline.callbacks.watch.redirect import beneath_tees
from hookline.callbacks.watch.wording import number, span

if TYPE_CHECKING:
    from hookline.run import Run


class PlainDisplay:
    """``21:03:07 epoch 2/5 step 46/115 train/loss 0.312 12.3 it/s, 394 samples/s, 1:02 left``.

    A line that would say the same as the one before is left out. ``write`` is given each line, without the time of
    day. Unless it is given, lines go to standard output, each is flushed, and when that is closed or full the display
    falls silent: there is nobody to tell.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = self._print if write is None else write
        self._last = ""
        self._closed = False

    def start(self, run: Run) -> None:
        self._last, self._closed = "", False

    def update(self, progress: Progress) -> None:
        news = what_is_new(progress)
        if news != self._last and not self._closed:
            self._last = news
            self._write(" ".join(part for part in (news, how_fast(progress)) if part))

    def close(self) -> None:
        self._closed = True

    def _print(self, line: str) -> None:
        try:
            # Looked up each time: a test, a notebook or the user may have put another one in its place.
            stream = beneath_tees(sys.stdout)
            encoding = stream.encoding or "utf-8"
            stream.write(f"{time.strftime('%H:%M:%S')} {line}\n".encode(encoding, "replace").decode(encoding))
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a full disk, a broken pipe; closed; None
            self._closed = True


def what_is_new(progress: Progress) -> str:
    """The line without its times, which are never twice the same."""
    metrics = [f"{name} {number(value)}" for name, value in progress.metrics.items()]
    return " ".join(part for part in (progress.where, *metrics, progress.note) if part)


def how_fast(progress: Progress) -> str:
    if progress.note or not progress.bars:
        return ""
    speeds = [bar.speed for bar in progress.bars if bar.speed]
    lefts = [bar.seconds_left for bar in progress.bars if bar.seconds_left]
    return ", ".join([*speeds[-1:], *(f"{span(left)} left" for left in lefts[:1])])
