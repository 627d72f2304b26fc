"""The generators that a user's ``for`` holds, and what is still to be done for those that were left."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any

from hookline.errors import ScopeError, add_secondary
from hookline.events import Scopes
from hookline.progress import Duration
from hookline.run import Requests


class Handles:
    """A generator that is left by ``break``, ``return`` or an exception closes its scopes at once.

    Which of the three it was cannot be seen from inside it. So the end hooks wait for the next call of the
    loop, or for its ``__exit__``: they are due after a ``break``, and not after an exception. An error in
    closing waits there too, instead of being lost as an unraisable one.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._open: list[weakref.ref[Generator[Any, None, Any]]] = []
        self._finish: list[Callable[[], None]] = []
        self._error: BaseException | None = None

    def track(self, generator: Generator[Any, None, Any]) -> Generator[Any, None, Any]:
        """Know of a generator without keeping it alive: when the ``for`` drops it, it closes."""
        self._open = [reference for reference in self._open if reference() is not None]
        self._open.append(weakref.ref(generator))
        return generator

    def leave(self, scopes: Scopes, mark: int, finish: Callable[[], None]) -> None:
        """Close the scopes of a generator that was left; keep the rest for ``settle``."""
        try:
            scopes.leave(mark)
        except BaseException as error:
            if self._error is None:
                self._error = error
            else:
                add_secondary(self._error, error)
        self._finish.append(finish)
        self._requests.call_attention()

    def settle(self) -> None:
        """Raise what went wrong, then send the end hooks that are due."""
        error, self._error = self._error, None
        if error is not None:
            self._finish.clear()
            raise error
        while self._finish:
            due, self._finish = self._finish, []  # what one of them calls settles nothing that comes after it
            for finish in due:
                finish()

    def close(self, because: BaseException | None) -> None:
        """Close all generators, the innermost first; after an exception nothing is finished."""
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
    """``loop.batches`` inside a loop over epochs, most likely."""
    until = "a stop" if max_duration is None else f"max_duration ({str(max_duration)!r}) or a stop"
    return ScopeError(
        f"loop.batches(): called a second time in one `with`; the first gives the batches of all epochs, until "
        f"{until}: remove your own `for epoch in …` around it; run.clock.epoch counts them"
    )
