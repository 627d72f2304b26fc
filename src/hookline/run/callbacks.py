"""``run.callbacks``: iterate over, find, add and remove the callbacks of a run."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hookline.errors import RegistrationError
from hookline.events import Callback, Failure, Line, Member
from hookline.events.callback import names_of
from hookline.events.order import overlaps

if TYPE_CHECKING:
    from hookline.run.run import Run


class Callbacks:
    """Callbacks of a run, in the order in which they run.

    Changes take effect at the next event, also from inside a hook.

    Args:
        line: The line that calls the callbacks.
        loop: The engine.
    """

    __slots__ = ("_line", "_loop")

    def __init__(self, line: Line[Run], loop: Any) -> None:
        self._line = line
        self._loop = loop

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._line.order.callbacks)

    def __len__(self) -> int:
        return len(self._line.order.callbacks)

    def __contains__(self, what: object) -> bool:
        return any(what is c or what is type(c) or what in names_of(c) for c in self)

    def __getitem__(self, name: str) -> Any:
        return self._find(name).callback

    def add(self, callback: Callback) -> None:
        """Register a callback and call its ``on_setup`` immediately.

        Args:
            callback: The callback to add.

        Raises:
            RegistrationError: If the callback is invalid or does not fit the others.
        """
        for member in self._line.add([callback]):
            try:
                self._loop.added(member)
            except Exception as error:  # The error belongs to the new callback, not to the caller.
                if not self._line.tolerates(member.view, "on_setup", error):
                    raise

    def remove(self, callback: Callback | str) -> None:
        """Remove a callback and call its ``on_teardown`` immediately.

        Open scopes of the callback still run to their end.

        Args:
            callback: The callback or its name.

        Raises:
            RegistrationError: If no callback or several callbacks have this name.
        """
        member = self._find(callback)
        try:
            self._loop.removed(member)
        except Exception as error:  # The error belongs to the removed callback, not to the caller.
            if not self._line.tolerates(member.view, "on_teardown", error):
                raise
        finally:
            self._line.remove(member)

    def lost(self, metric: str) -> bool:
        """True if a disabled callback declares in ``writes`` that it logs the metric.

        Args:
            metric: Full name of the metric.
        """
        off = [member.callback for member in self._line.members if member.disabled]
        return any(overlaps(metric, written) for callback in off for written in callback.writes)

    def declare(self, metric: str) -> bool:
        """True if a callback or the task declares the metric in ``writes`` and may log it later.

        Args:
            metric: Full name of the metric.
        """
        return any(overlaps(metric, name) for name in self._line.written())

    @property
    def disabled(self) -> tuple[Failure, ...]:
        """Failures of optional callbacks, in order. Hookline disabled these callbacks."""
        return tuple(self._line.failures)

    def _find(self, wanted: Callback | str) -> Member[Run]:
        members = [member for member in self._line.members if not member.is_task]
        found = [m for m in members if m.callback is wanted or wanted in names_of(m.callback)]
        if len(found) == 1:
            return found[0]
        names = [member.name for member in members]
        if found:
            raise RegistrationError(
                f"{len(found)} callbacks are called {wanted!r}; give each a name, or pass the object itself"
            )
        close = get_close_matches(str(wanted), names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(names) or 'none'}"
        raise RegistrationError(f"no callback {wanted!r} in this run; {hint}")
