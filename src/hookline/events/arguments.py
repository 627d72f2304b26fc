"""Checks of constructor arguments: unknown names, and types by the annotations of ``__init__``."""

from __future__ import annotations

import builtins
import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, TextIO, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hookline.errors import ArgumentError
from hookline.events.foreign_names import ARGUMENTS, RENAMED, advice_for
from hookline.progress import Duration
from hookline.records.redact import HIDDEN, redact

Init = TypeVar("Init", bound=Callable[..., None])

_NAMES: dict[Any, str] = {
    Duration: "a duration such as '2ep'",
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: "None",
    Callable: "a function",
    Mapping: "a dict",
    type: "a class",
    TextIO: "a text file that is open for writing",
}
_MAX_VALUE_CHARS = 80


def parameters_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of ``__init__``, with ``self``.

    Args:
        cls: A class. A class written in C may have no signature, and then no parameters.
    """
    try:
        return inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    except ValueError:
        return {}


def shown(name: str, value: object) -> str:
    """Return ``repr(value)`` without secrets, because users share messages and upload checkpoints.

    Args:
        name: Name of the argument, which tells a password.
        value: Its value.
    """
    hidden = repr(redact(value, name))
    return hidden if HIDDEN in hidden else repr(value)


def wrong_argument(where: str, name: str, value: object, problem: str) -> ArgumentError:
    """Return the error for one argument.

    Args:
        where: The class or function that takes the argument.
        name: Name of the argument.
        value: Its value.
        problem: One or two sentences: what is wrong, and what to do.

    Example:
        >>> str(wrong_argument("EarlyStopping", "min_delta", -1, "must be >= 0."))
        'EarlyStopping(min_delta=-1): must be >= 0.'
    """
    text = shown(name, value)
    short = text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"
    return ArgumentError(f"{where}({name}={short}): {problem}")


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


def check_types(where: str, function: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise for the first argument whose value does not have the type of its annotation.

    A number is not a bool and not NaN, an integer is not a float, and a list of strings is not a string.

    Args:
        where: Class or function of the arguments, for the error.
        function: The function that takes them.
        given: The arguments by name.
    """
    types = _types_of(function)
    for name, value in given.items():
        if name in types and not _fits(value, types[name]):
            raise wrong_argument(where, name, value, f"must be {_described(types[name])}.")


def checked_init(init: Init) -> Init:
    """Check the arguments of a constructor. Callbacks need no such decorator, because their base class checks them.

    Args:
        init: The method ``__init__`` of a class.
    """
    signature = inspect.signature(init)

    @wraps(init)
    def call(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            refuse_unknown(type(self), kwargs)
        else:
            check_types(type(self).__name__, init, given)
        init(self, *args, **kwargs)

    return cast("Init", call)


class _Names(dict[str, Any]):
    """Names of a module. A name that only type checkers import stands for any type."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


@cache
def _types_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of the parameters as types. ``*args`` and ``**kwargs`` are left out."""
    types = get_type_hints(function, localns=_Names({"Duration": Duration, **function.__globals__}))
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return {its.name: types[its.name] for its in parameters if its.name in types and its.kind not in variable}


def _fits(value: object, kind: Any) -> bool:
    """True if the value has the type, as far as it can be seen without a change to the value."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        is_bool = isinstance(value, bool)  # Which equals 0 or 1.
        return any(isinstance(value, type(one)) and is_bool is isinstance(one, bool) and value == one for one in inside)
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
        return number and not math.isnan(cast("float", value))
    if kind is TextIO:
        return hasattr(value, "write")
    if origin is Callable or kind is Callable:
        return callable(value)
    if origin is type:
        return isinstance(value, type)
    holder = origin or kind
    if not isinstance(holder, type) or holder.__module__ == "typing" or getattr(holder, "_is_protocol", False):
        return True  # A type variable, ``Any`` or a protocol.
    if origin is None or _is_path(kind):
        return isinstance(value, holder)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable if holder is tuple else holder):
        return False
    if isinstance(value, Mapping) and len(inside) > 1:
        return all(_fits(key, inside[0]) and _fits(item, inside[1]) for key, item in value.items())
    return not isinstance(value, Collection) or all(_fits(item, inside[0]) for item in value)


def _described(kind: Any) -> str:
    """Return a type in words.

    >>> _described(str | Duration | None), _described(Literal["min", "max"])
    ("a duration such as '2ep' or None", "'min' or 'max'")
    """
    words = list(dict.fromkeys(_words(kind)))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(kind: Any) -> list[str]:
    origin, inside = get_origin(kind), get_args(kind)
    holder = origin or kind
    if origin in (Union, UnionType):
        is_text = Duration not in inside and not any(map(_is_path, inside))
        return [word for one in inside if is_text or one is not str for word in _words(one)]
    if origin is Literal:
        return [repr(one) for one in inside]
    if kind is bool:
        return ["True", "False"]
    if _is_path(kind):
        return ["a path"]
    if holder in _NAMES:
        return [_NAMES[holder]]
    if isinstance(holder, type) and issubclass(holder, Iterable) and inside:
        plural = {str: "strings", float: "numbers", int: "integers"}.get(inside[0])
        return [f"a list of {plural}" if plural else "a list"]
    return [f"{'an' if holder.__name__[0] in 'AEIO' else 'a'} {holder.__name__}"]


def _is_path(kind: Any) -> bool:
    holder = get_origin(kind) or kind
    return isinstance(holder, type) and issubclass(holder, os.PathLike)
