"""What a program prints during a run: it goes above the bars, and into the log."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

STREAMS: Final = ("stdout", "stderr")
LONGEST: Final = 10_000
"""A line that has more characters, and still no end, is taken for one."""


class Lines:
    r"""Whole lines out of what is written in pieces. Each thread has its own, so that they do not mix.

    There is no lock in it: one that another thread holds while the workers of a loader are forked would leave
    them waiting for it for ever.

    >>> lines = Lines()
    >>> lines.add("1 %\r2 %\r3"), lines.add(" %\nand "), lines.rest()
    ('', '3 %\n', 'and ')
    """

    def __init__(self) -> None:
        self._rests: dict[tuple[int, int], str] = {}

    def add(self, text: str) -> str:
        """The lines that are complete now, each with its end. Of what is written over, only the last is left."""
        key = os.getpid(), threading.get_ident()  # a worker must not go on with a line of its parent
        whole, end, rest = (self._rests.pop(key, "") + text).rpartition("\n")
        lines = [_seen(line) + "\n" for line in whole.split("\n")] if end else []
        if len(rest) > LONGEST:
            lines.append(_seen(rest) + "\n")
        elif rest:
            self._rests[key] = _seen(rest) + ("\r" if rest.endswith("\r") else "")
        return "".join(lines)

    def rest(self) -> str:
        """What has no end yet; it is forgotten."""
        mine = [rest for (process, _), rest in list(self._rests.items()) if process == os.getpid()]
        self._rests.clear()
        return "".join(mine)


def _seen(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


class StandIn:
    """Stands in for a stream. What it does not do itself, the stream below it does."""

    def __init__(self, below: Any) -> None:
        self.below = below

    def write(self, text: str) -> int:
        return self.below.write(text)  # type: ignore[no-any-return]

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """From now on everything goes straight to the stream below: somebody may have kept this one."""

    def __getattr__(self, name: str) -> Any:
        if name == "below":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.below, name)


class Above(StandIn):
    """Whole lines are handed to ``show``, the rest waits for its end: bars must not tear it."""

    def __init__(self, below: Any, show: Callable[[str], None]) -> None:
        super().__init__(below)
        self._show: Callable[[str], None] | None = show
        self._lines = Lines()

    @property
    def has_bars(self) -> bool:
        return self._show is not None

    def write(self, text: str) -> int:
        if self._show is None:
            return super().write(text)
        if lines := self._lines.add(text):
            self._show(lines.removesuffix("\n"))
        return len(text)

    def flush(self) -> None:
        if self._show is None:
            self.below.flush()

    def end(self) -> None:
        self._show, rest = None, self._lines.rest()
        if rest:
            with suppress(OSError, ValueError):
                self.below.write(rest)
                self.below.flush()


class Tee(StandIn):
    """Everything goes to the stream, and line by line to ``keep`` as well, which must not raise."""

    def __init__(self, below: Any, keep: Callable[[str], None]) -> None:
        super().__init__(below)
        self._keep: Callable[[str], None] | None = keep
        self._lines = Lines()

    def write(self, text: str) -> int:
        if self._keep is not None and isinstance(text, str) and (lines := self._lines.add(text)):
            self._keep(lines.removesuffix("\n"))
        return super().write(text)

    def end(self) -> None:
        keep, self._keep, rest = self._keep, None, self._lines.rest()
        if keep is not None and rest.strip("\r"):
            keep(rest.rstrip("\r"))


@contextmanager
def above(show: Callable[[str], None]) -> Iterator[None]:
    """Standard output, standard error and the log handlers that write to them go through ``show``.

    Only where they are a terminal: what the user sends to a file stays in the file.
    """
    with ExitStack() as stack:
        for name in STREAMS:
            if is_terminal(getattr(sys, name)):
                stack.enter_context(_replaced(name, lambda below: Above(below, show), beneath=Tee))
        yield


@contextmanager
def kept(keep: Callable[[str], None]) -> Iterator[None]:
    """What goes to standard output and standard error goes to ``keep`` as well."""
    with ExitStack() as stack:
        for name in STREAMS:
            if getattr(sys, name) is not None:
                stack.enter_context(_replaced(name, lambda below: Tee(below, keep)))
        yield


@contextmanager
def _replaced(name: str, make: Callable[[Any], StandIn], beneath: type[StandIn] | None = None) -> Iterator[None]:
    """A stand-in for ``sys.<name>``. Bars stand ``beneath`` a tee: what they write is no print of the program."""
    holder, attribute = _places(name, beneath)[-1]
    below = getattr(holder, attribute)
    stand_in = make(below)
    setattr(holder, attribute, stand_in)
    _hand_over(below, stand_in)
    try:
        yield
    finally:
        for holder, attribute in _places(name, StandIn):
            if getattr(holder, attribute) is stand_in:
                setattr(holder, attribute, stand_in.below)
                break
        # else somebody put another stream in its place, and will take it away again
        _hand_over(stand_in, stand_in.below)
        stand_in.end()


def _places(name: str, through: type[StandIn] | None) -> list[tuple[Any, str]]:
    """Where a stream is held: by ``sys``, by the stand-in that it finds there, and so on down."""
    places: list[tuple[Any, str]] = [(sys, name)]
    while through is not None and isinstance(found := getattr(*places[-1]), through):
        places.append((found, "below"))
    return places


def _hand_over(stream: Any, other: Any) -> None:
    """A log handler keeps the stream that it was made with, so it must be told of another."""
    for handler in _stream_handlers():
        if handler.stream is stream:
            handler.setStream(other)


def _stream_handlers() -> list[Any]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]


def is_terminal(stream: Any) -> bool:
    """Whether it is open and a terminal; ``sys.stdout`` may be ``None``, closed, or anything."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def has_bars(stream: Any) -> bool:
    """Whether the bars of another run are on it."""
    while isinstance(stream, StandIn):
        if isinstance(stream, Above) and stream.has_bars:
            return True
        stream = stream.below
    return False


def beneath_tees(stream: Any) -> Any:
    """Where a display writes: the log has lines of its own for what it shows."""
    while isinstance(stream, Tee):
        stream = stream.below
    return stream
