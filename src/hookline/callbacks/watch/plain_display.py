"""``PlainDisplay``: one line of text at a time, for logs and everything else that is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hookline.callbacks.watch.display import Progress
from hookline.callbacks.watch.wording import number, span

if TYPE_CHECKING:
    from hookline.run import Run


class PlainDisplay:
    """``21:03:07 epoch 2/5 step 46/115 train/loss 0.312 12.3 it/s, 394 samples/s, 1:02 left``.

    Every line is flushed. A line that would say the same as the one before is left out. When standard output
    is closed or full, the display falls silent: there is nobody to tell.
    """

    def __init__(self) -> None:
        self._last = ""
        self._closed = False

    def start(self, run: Run) -> None:
        self._last, self._closed = "", False

    def update(self, progress: Progress) -> None:
        news = what_is_new(progress)
        if news != self._last and not self._closed:
            self._last = news
            self._write(" ".join(part for part in (time.strftime("%H:%M:%S"), news, how_fast(progress)) if part))

    def close(self) -> None:
        self._closed = True

    def _write(self, line: str) -> None:
        try:
            # Looked up each time: a test, a notebook or the user may have put another one in its place.
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            sys.stdout.flush()
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
