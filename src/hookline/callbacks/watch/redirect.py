"""What a program prints while bars are on the screen: it goes above them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, cast


class Above:
    """Stands in for a terminal stream: whole lines are handed to ``show``, the rest waits for its end."""

    def __init__(self, stream: IO[str], show: Callable[[str], None]) -> None:
        self._stream = stream
        self._show: Callable[[str], None] | None = show
        self._rest = ""

    def write(self, text: str) -> int:
        if self._show is None:  # somebody has kept it longer than the bars were there
            return self._stream.write(text)
        lines, new_line, rest = (self._rest + text).rpartition("\n")
        self._rest = rest.rpartition("\r")[2]  # what came before a carriage return was written over
        if new_line:
            self._show("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines.split("\n")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing while there are bars: they would tear a line that is not complete."""
        if self._show is None:
            self._stream.flush()

    def end(self) -> None:
        """The bars are gone: from now on everything goes straight to the stream."""
        self._show, rest, self._rest = None, self._rest, ""
        if rest:
            with suppress(OSError, ValueError):
                self._stream.write(rest)
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def above(show: Callable[[str], None]) -> Iterator[None]:
    """Standard output, standard error and the log handlers that write to them go through ``show``.

    Only where they are a terminal: what the user sends to a file stays in the file.
    """
    with ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if is_terminal(getattr(sys, name)):
                stack.enter_context(_replaced(name, getattr(sys, name), show))
        yield


@contextmanager
def _replaced(name: str, stream: IO[str], show: Callable[[str], None]) -> Iterator[None]:
    stand_in = Above(stream, show)
    # A log handler keeps the stream that it was made with, so it must be told of another.
    handlers = [handler for handler in _stream_handlers() if handler.stream is stream]
    setattr(sys, name, stand_in)
    for handler in handlers:
        handler.setStream(cast("IO[str]", stand_in))
    try:
        yield
    finally:
        if getattr(sys, name) is stand_in:  # else somebody put another one there, and will take it away again
            setattr(sys, name, stream)
        for handler in handlers:
            if handler.stream is stand_in:
                handler.setStream(stream)
        stand_in.end()


def is_terminal(stream: Any) -> bool:
    """Whether it is open and a terminal; ``sys.stdout`` may be ``None``, closed, or anything."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def _stream_handlers() -> list[Any]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
