"""What a program prints during a run: it goes above the bars, and into the log."""

from __future__ import annotations

import builtins
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

STREAMS: Final = ("stdout", "stderr")
Kind = TypeVar("Kind", bound="StandIn")
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
        self._shown: dict[tuple[int, int], str] = {}

    def add(self, text: str) -> str:
        """The lines that are complete now, each with its end. Of what is written over, only the last is left."""
        key = _here()
        self._shown.pop(key, None)
        whole, end, rest = (self._rests.pop(key, "") + text).rpartition("\n")
        lines = [_seen(line) + "\n" for line in whole.split("\n")] if end else []
        if len(rest) > LONGEST:
            lines.append(_seen(rest) + "\n")
        elif rest:
            self._rests[key] = _seen(rest) + ("\r" if rest.endswith("\r") else "")
        return "".join(lines)

    def show(self) -> str:
        """The line of this thread that has no end yet: somebody wants to see it now."""
        rest = self._rests.get(_here(), "")
        if rest:
            self._shown[_here()] = rest
        return rest

    def rest(self, *, but_shown: bool = False) -> str:
        """What has no end yet, or only what of it was not shown; all is forgotten."""
        shown = self._shown if but_shown else {}
        rests = [rest for key, rest in list(self._rests.items()) if key[0] == os.getpid() and shown.get(key) != rest]
        self._rests.clear()
        self._shown.clear()
        return "".join(rests)


def _here() -> tuple[int, int]:
    """Process and thread: a worker must not go on with a line of its parent."""
    return os.getpid(), threading.get_ident()


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


class Bars(Protocol):
    """What is at the end of a terminal, and makes room for what the program writes."""

    def print_above(self, text: str) -> None:
        """Show whole lines."""

    def hold(self, text: str) -> None:
        """Show a line that will go on."""

    def lift(self) -> None:
        """Go away, until the next time they are drawn."""


class Above(StandIn):
    """Whole lines go above the bars. The rest waits for its end, or for a flush: bars must not tear it."""

    def __init__(self, below: Any, bars: Bars) -> None:
        super().__init__(below)
        self._bars: Bars | None = bars
        self._lines = Lines()

    @property
    def has_bars(self) -> bool:
        return self._bars is not None

    def write(self, text: str) -> int:
        if self._bars is None:
            return super().write(text)
        if lines := self._lines.add(text):
            self._bars.print_above(lines.removesuffix("\n"))
        return len(text)

    def flush(self) -> None:
        if self._bars is None:
            self.below.flush()
        elif rest := self._lines.show():
            self._bars.hold(rest)

    def let_go(self) -> None:
        """The bars are away: what has no end goes to the stream as it is."""
        self._write_below(self._lines.rest())

    def end(self) -> None:
        self._bars = None
        self._write_below(self._lines.rest(but_shown=True))

    def _write_below(self, rest: str) -> None:
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
def above(bars: Bars) -> Iterator[None]:
    """Standard output, standard error and the log handlers that write to them go above the bars.

    Only where they are a terminal: what the user sends to a file stays in the file. ``input()`` writes to the terminal
    itself, past all streams, and so do debuggers, which use it: the bars go away for it.
    """
    with ExitStack() as stack:
        streams = [
            stack.enter_context(_replaced(name, lambda below: Above(below, bars), beneath=Tee))
            for name in STREAMS
            if is_terminal(getattr(sys, name))
        ]
        ask = builtins.input

        def ask_below(prompt: object = "", /) -> str:
            bars.lift()
            for stream in streams:
                stream.let_go()
            return ask(prompt)

        builtins.input = ask_below
        try:
            yield
        finally:
            if builtins.input is ask_below:
                builtins.input = ask


@contextmanager
def kept(keep: Callable[[str], None]) -> Iterator[None]:
    """What goes to standard output and standard error goes to ``keep`` as well."""
    with ExitStack() as stack:
        for name in STREAMS:
            if getattr(sys, name) is not None:
                stack.enter_context(_replaced(name, lambda below: Tee(below, keep)))
        yield


@contextmanager
def _replaced(name: str, make: Callable[[Any], Kind], beneath: type[StandIn] | None = None) -> Iterator[Kind]:
    """A stand-in for ``sys.<name>``. Bars stand ``beneath`` a tee: what they write is no print of the program."""
    holder, attribute = _places(name, beneath)[-1]
    below = getattr(holder, attribute)
    stand_in = make(below)
    setattr(holder, attribute, stand_in)
    _hand_over(below, stand_in)
    try:
        yield stand_in
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
