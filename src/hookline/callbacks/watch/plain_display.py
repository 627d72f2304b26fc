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

    What the line before has said of the same moment is not said again, and a run's first line is that of its first
    step: before it there is nothing to say. ``write`` is given each line, without the time of day. Unless it is given,
    lines go to standard output, each is flushed, and when that is closed or full the display falls silent: there is
    nobody to tell.
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = self._print if write is None else write
        self._forget()

    def _forget(self) -> None:
        self._where: str | None = None
        self._said: dict[str, str] = {}
        """By the metric's name; the note has none."""
        self._closed = False

    def start(self, run: Run) -> None:
        self._forget()

    def update(self, progress: Progress) -> None:
        news = self._news(progress)
        if news and not self._closed:
            self._write(" ".join(part for part in (*news, how_fast(progress)) if part))

    def _news(self, progress: Progress) -> list[str]:
        """The parts of the line without its times, which are never twice the same."""
        parts = {name: f"{name} {number(value)}" for name, value in progress.metrics.items()}
        parts |= {"": progress.note} if progress.note else {}
        is_first, has_moved = self._where is None, progress.where != self._where
        fresh = [text for name, text in parts.items() if has_moved or self._said.get(name) != text]
        self._where, self._said = progress.where, parts
        has_values = any(value is not None for value in progress.metrics.values())
        if is_first and not has_values and not progress.note and not progress.over:
            return []
        return [progress.where, *fresh] if has_moved or fresh else []

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


def in_words(progress: Progress) -> str:
    """The whole line without its times."""
    metrics = [f"{name} {number(value)}" for name, value in progress.metrics.items()]
    return " ".join(part for part in (progress.where, *metrics, progress.note) if part)


def how_fast(progress: Progress) -> str:
    if progress.note or not progress.bars:
        return ""
    speeds = [bar.speed for bar in progress.bars if bar.speed]
    lefts = [bar.seconds_left for bar in progress.bars if bar.seconds_left]
    return ", ".join([*speeds[-1:], *(f"{span(left)} left" for left in lefts[:1])])
