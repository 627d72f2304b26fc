"""Errors for constructor arguments that a callback or sink does not take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from hookline.errors import ArgumentError
from hookline.events.foreign_names import ARGUMENTS, RENAMED, advice_for

Init = TypeVar("Init", bound=Callable[..., None])


def parameters_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of ``__init__``, with ``self``.

    Args:
        cls: A class. A class written in C may have no signature, and then no parameters.
    """
    try:
        return inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    except ValueError:
        return {}


def refuse_unknown(cls: type, given: Mapping[str, object]) -> None:
    """Raise for an unknown constructor keyword if Hookline can tell what the user meant.

    Args:
        cls: The class of which an object is made.
        given: The keywords and their values.
    """
    takes = [name for name in parameters_of(cls) if name != "self"]
    unknown = next((name for name in given if name not in takes), None)
    if not takes or unknown is None:
        return
    known: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        known |= ARGUMENTS.get(base.__name__, {}) if base.__module__.startswith("hookline.") else {}
    value, renamed = given[unknown], RENAMED.get(unknown)
    if unknown in known:
        advice = advice_for(known[unknown], value)
        hint = f"{advice[0].upper()}{advice[1:]}." if advice.startswith("leave") else f"Write {advice}."
    elif renamed in takes:
        hint = f"Write {renamed}={value!r:.40}."
    elif close := get_close_matches(unknown, takes, n=1, cutoff=0.75):
        hint = f"Did you mean {close[0]}?"
    else:
        return
    raise ArgumentError(f"{cls.__name__}({unknown}={value!r:.40}): no such argument. {hint}")


def checked_init(init: Init) -> Init:
    """Check the arguments of a constructor. Callbacks need no such decorator, because their base class checks them.

    Args:
        init: The method ``__init__`` of a class.
    """

    @wraps(init)
    def call(self: object, *args: Any, **kwargs: Any) -> None:
        refuse_unknown(type(self), kwargs)
        init(self, *args, **kwargs)

    return cast("Init", call)
