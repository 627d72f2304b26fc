"""Stack of the ``around_*`` generators whose scopes are open."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import Any

from hookline.errors import ScopeError, add_secondary
from hookline.events.line import Heard, Line


class Scopes:
    """Stack of open scopes.

    Read ``mark = len(scopes)`` before ``enter``, and call ``leave(mark)`` after the end hooks.

    Args:
        line: The callbacks of the run.
    """

    __slots__ = ("_line", "_open", "failing")

    def __init__(self, line: Line[Any]) -> None:
        self._line = line
        self._open: list[tuple[str, Any, Generator[None, None, None]]] = []
        self.failing: Callable[[BaseException], object] | None = None
        """Called with an error before scopes close because of it.

        Other processes may be waiting, and closing the scopes may take long.
        """

    def when_failing(self, call: Callable[[BaseException], object] | None) -> None:
        """Set the function that is called before scopes close because of an error."""
        self.failing = call

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, around: Heard) -> None:
        """Run every generator of a scope up to its ``yield``.

        Args:
            around: The generators of the scope.

        Raises:
            ScopeError: If a generator of a required callback does not yield.
        """
        for generator_function, run in around:
            generator = generator_function(run)
            try:
                if self._advance(generator, run, around.event):
                    raise ScopeError(f"{run.member.name}.{around.event} did not yield; it must yield exactly once")
            except BaseException as error:
                if not self._line.tolerates(run, around.event, error):
                    raise
            else:
                self._open.append((around.event, run, generator))

    def leave(self, mark: int = 0, because: BaseException | None = None) -> None:
        """Run all generators above a mark to their end, then raise the first error.

        Args:
            mark: Length of the stack to return to.
            because: Error that closes the scopes. Errors of the generators become notes on it, and are not raised.

        Raises:
            ScopeError: If a generator of a required callback yields twice.
        """
        first: BaseException | None = because
        if because is not None and self.failing is not None and len(self._open) > mark:
            self.failing(because)
        while len(self._open) > mark:
            hook, run, generator = self._open.pop()
            try:
                self._leave_one(hook, run, generator)
            except BaseException as error:
                if first is None:
                    first = error
                else:
                    add_secondary(first, error)
        if first is not None and because is None:
            raise first

    def _leave_one(self, hook: str, run: Any, generator: Generator[None, None, None]) -> None:
        try:
            if not self._advance(generator, run, hook, calls=0):
                generator.close()  # Its `finally` blocks run now, not when it is garbage-collected.
                raise ScopeError(f"{run.member.name}.{hook} yielded twice; it must yield exactly once")
        except BaseException as error:
            if not self._line.tolerates(run, hook, error):
                raise

    def _advance(self, generator: Generator[None, None, None], run: Any, hook: str, *, calls: int = 1) -> bool:
        """Run a generator to its next ``yield`` and add the time. Return True if it ended."""
        start = perf_counter_ns()
        try:
            next(generator)
        except StopIteration:
            return True
        finally:
            self._line.add_scope_cost(run, hook, perf_counter_ns() - start, calls)
        return False
