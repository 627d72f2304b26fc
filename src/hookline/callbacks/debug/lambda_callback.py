"""``LambdaCallback``: build a callback from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline.errors import ArgumentError
from hookline.events import Callback


class LambdaCallback(Callback):
    """Build a callback from functions, one per hook.

    For one function with a filter, use ``hl.on``.

    Args:
        name: Name of the callback. Two instances in one run need different names.
        **hooks: Functions by name of the hook, such as ``on_train_start=lambda run: …``. An ``around_*`` hook is a
            generator function with one ``yield``.

    Raises:
        ArgumentError: If a name does not start with ``on_`` or ``around_``, or a value is not callable.

    Example:
        >>> callback = LambdaCallback(on_train_start=lambda run: print("here we go"))
        >>> callback.on_train_start(None)
        here we go
    """

    def __init__(self, *, name: str = "", **hooks: Callable[..., Any]) -> None:
        self.name = name
        for hook, function in hooks.items():
            if not hook.startswith(("on_", "around_")):
                raise ArgumentError(f"LambdaCallback({hook}=…): is not a hook. Write for example on_train_start=….")
            if not callable(function):
                raise ArgumentError(f"LambdaCallback({hook}={function!r}): must be a function of one argument, run.")
            # Registration checks whether the hook exists.
            setattr(self, hook, function)
