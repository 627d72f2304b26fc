"""Redirection of the program's output: above the bars, and into the log."""

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
"""Number of characters after which an unfinished line is treated as complete."""


class Lines:
    r"""Buffer that joins written pieces to complete lines. Each thread has its own buffer.

    There is no lock: a worker of a loader that is forked while another thread holds a lock would wait for it
    forever.

    Example:
        >>> lines = Lines()
        >>> lines.add("1 %\r2 %\r3"), lines.add(" %\nand "), lines.rest()
        ('', '3 %\n', 'and ')
    """

    def __init__(self) -> None:
        self._rests: dict[tuple[int, int], str] = {}
        self._shown: dict[tuple[int, int], str] = {}

    def add(self, text: str) -> str:
        """Return the lines that are now complete.

        Of text that is overwritten with carriage returns, the last version counts.
        """
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
        """Return the unfinished line of this thread, and remember that it was shown."""
        rest = self._rests.get(_here(), "")
        if rest:
            self._shown[_here()] = rest
        return rest

    def rest(self, *, but_shown: bool = False) -> str:
        """Return and clear all unfinished lines, or those that were not shown."""
        shown = self._shown if but_shown else {}
        rests = [rest for key, rest in list(self._rests.items()) if key[0] == os.getpid() and shown.get(key) != rest]
        self._rests.clear()
        self._shown.clear()
        return "".join(rests)


def _here() -> tuple[int, int]:
    """Return the process and thread: a forked worker must not continue a line of its parent."""
    return os.getpid(), threading.get_ident()


def _seen(line: str) -> str:
    """Return the part of a line that stays visible after carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]


class StandIn:
    """Replacement for a stream. It forwards everything that it does not override."""

    def __init__(self, below: Any) -> None:
        self.below = below

    def write(self, text: str) -> int:
        return self.below.write(text)  # type: ignore[no-any-return]

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Forward everything from now on: another object may still hold this replacement."""

    def __getattr__(self, name: str) -> Any:
        if name == "below":  # A copy does not have its attributes yet.
            raise AttributeError(name)
        return getattr(self.below, name)


class Bars(Protocol):
    """Bars at the end of a terminal, which make room for output of the program."""

    def print_above(self, text: str) -> None:
        """Print complete lines."""

    def hold(self, text: str) -> None:
        """Show a line that is not complete yet."""

    def lift(self) -> None:
        """Remove the bars until they are drawn again."""


class Above(StandIn):
    """Print complete lines above the bars.

    An unfinished line waits for its end or for a flush, so that the bars do not split it.
    """

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
        """Write unfinished lines to the stream, after the bars were removed."""
        self._write_below(self._lines.rest())

    def end(self) -> None:
        self._bars = None
        self._write_below(self._lines.rest(but_shown=True))

    def _write_below(self, rest: str) -> None:
        """Write unfinished lines to the stream below, and ignore that it is closed."""
        if rest:
            with suppress(OSError, ValueError):
                self.below.write(rest)
                self.below.flush()


class Tee(StandIn):
    """Write everything to the stream, and each line also to ``keep``. It must not raise errors."""

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
    """Redirect standard output, standard error and their log handlers above the bars.

    Only terminals are redirected: output to a file stays in the file. ``input()`` and debuggers write to the
    terminal directly, so the bars are removed for them.
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
    """Pass standard output and standard error to ``keep`` as well."""
    with ExitStack() as stack:
        for name in STREAMS:
            if getattr(sys, name) is not None:
                stack.enter_context(_replaced(name, lambda below: Tee(below, keep)))
        yield


@contextmanager
def _replaced(name: str, make: Callable[[Any], Kind], beneath: type[StandIn] | None = None) -> Iterator[Kind]:
    """Replace ``sys.<name>`` temporarily.

    Bars go below a tee, because their output is not output of the program.
    """
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
        # Otherwise other code has replaced the stream, and will restore it.
        _hand_over(stand_in, stand_in.below)
        stand_in.end()


def _places(name: str, through: type[StandIn] | None) -> list[tuple[Any, str]]:
    """Return the objects that hold a stream: ``sys``, then each replacement below it."""
    places: list[tuple[Any, str]] = [(sys, name)]
    while through is not None and isinstance(found := getattr(*places[-1]), through):
        places.append((found, "below"))
    return places


def _hand_over(stream: Any, other: Any) -> None:
    """Move log handlers to another stream. A handler keeps the stream that it was created with."""
    for handler in _stream_handlers():
        if handler.stream is stream:
            handler.setStream(other)


def _stream_handlers() -> list[Any]:
    """Return all log handlers that write to a stream."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]


def is_terminal(stream: Any) -> bool:
    """True if the stream is an open terminal.

    ``sys.stdout`` may be ``None``, closed, or any object.
    """
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def has_bars(stream: Any) -> bool:
    """True if the stream has bars of another run."""
    while isinstance(stream, StandIn):
        if isinstance(stream, Above) and stream.has_bars:
            return True
        stream = stream.below
    return False


def beneath_tees(stream: Any) -> Any:
    """Return the stream that a display writes to. The log has its own progress lines."""
    while isinstance(stream, Tee):
        stream = stream.below
    return stream
