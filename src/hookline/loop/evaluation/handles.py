"""``Handles``: the generators that a custom loop iterates over, and their end hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any

from hookline.errors import ScopeError, add_secondary
from hookline.events import Scopes
from hookline.progress import Duration
from hookline.run import Requests


class Handles:
    """The generators that the body of a custom loop iterates over.

    The body may leave a generator by ``break``, ``return`` or an exception. The generator then closes its scopes at
    once, but it cannot see which of the three it was. So the end hooks wait for the next call of the loop, or for its
    ``__exit__``: they are due after a ``break``, but not after an exception.

    An error of the close is raised at the same point. In the generator, Python would only print it.

    Args:
        requests: The requests of the run.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._open: list[weakref.ref[Generator[Any, None, Any]]] = []
        self._finish: list[Callable[[], None]] = []
        self._error: BaseException | None = None

    def track(self, generator: Generator[Any, None, Any]) -> Generator[Any, None, Any]:
        """Track a generator without keeping it alive: it closes when the ``for`` drops it."""
        self._open = [reference for reference in self._open if reference() is not None]
        self._open.append(weakref.ref(generator))
        return generator

    def leave(self, scopes: Scopes, mark: int, finish: Callable[[], None]) -> None:
        """Close the scopes of a generator that was left, and keep the rest for ``send_end_hooks``.

        Args:
            scopes: The open scopes of the run.
            mark: The number of scopes that were open before the generator.
            finish: Function that sends the end hooks of the generator.
        """
        try:
            scopes.leave(mark)
        except BaseException as error:
            if self._error is None:
                self._error = error
            else:
                add_secondary(self._error, error)
        self._finish.append(finish)
        self._requests.call_attention()

    def send_end_hooks(self) -> None:
        """Raise the error of a close. If there is none, send the end hooks that are due."""
        error, self._error = self._error, None
        if error is not None:
            self._finish.clear()
            raise error
        while self._finish:
            due, self._finish = self._finish, []  # A hook may call this method again, which must not send the rest.
            for finish in due:
                finish()

    def close(self, because: BaseException | None) -> None:
        """Close all generators, the innermost first. After an exception, no end hooks are sent.

        Args:
            because: The exception that closes the loop, if there is one.
        """
        for reference in reversed(self._open):
            generator = reference()
            if generator is not None:
                generator.close()
        self._open.clear()
        if because is not None:
            self._finish.clear()
            if self._error is not None and self._error is not because:
                add_secondary(because, self._error)
            self._error = None


def batches_twice(max_duration: Duration | None) -> ScopeError:
    """Return the error for a second ``loop.batches``, most likely in a loop over epochs."""
    until = "a stop" if max_duration is None else f"max_duration ({str(max_duration)!r}) or a stop"
    return ScopeError(
        f"loop.batches(): called a second time in one `with`; the first gives the batches of all epochs, until "
        f"{until}: remove your own `for epoch in …` around it; run.clock.epoch counts them"
    )
