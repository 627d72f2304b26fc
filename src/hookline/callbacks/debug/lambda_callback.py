"""``LambdaCallback``: hooks given as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline.errors import RegistrationError
from hookline.events import Callback


class LambdaCallback(Callback):
    """A callback made of functions, one per hook; each gets ``run``.

    It runs wherever its functions say. For one function with a filter there is ``hl.on``.

    >>> callback = LambdaCallback(on_train_start=lambda run: print("here we go"))
    >>> callback.on_train_start(None)
    here we go
    """

    def __init__(self, *, name: str = "", **hooks: Callable[..., Any]) -> None:
        self.name = name
        for hook, function in hooks.items():
            if not hook.startswith(("on_", "around_")):
                raise RegistrationError(
                    f"LambdaCallback({hook}=…): a hook starts with on_ or around_, such as on_train_start"
                )
            if not callable(function):
                raise RegistrationError(f"LambdaCallback({hook}={function!r}): give a function of one argument, run")
            setattr(self, hook, function)  # whether there is such a hook is checked when it is registered
