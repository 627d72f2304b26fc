"""Errors for unknown arguments, with the Hookline name for keywords of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from hookline.errors import ArgumentError
from hookline.events.arguments import shown
from hookline.events.foreign_names import DATASETS, ELSEWHERE, advice_for
from hookline.events.foreign_names import KEYWORDS as OPTIONS
from hookline.events.foreign_names import PLACES as ARGUMENTS
from hookline.loop.settings import OPTIONS as SETTINGS

EXAMPLES = {"max_duration": "max_duration='10ep'", "loss": "loss=nn.CrossEntropyLoss()"}
"""How an error shows an argument by name. Other arguments are shown as ``name=…``."""

IN_A_LOOP = {
    "loss": "in a custom loop, call it yourself",
    "train": "in a custom loop, write for batch in loop.batches(…)",
}
"""Replacements in a custom loop, by the argument of ``fit``."""

MAX_VALUE_CHARS = 40
"""An error shows a longer value as ``…``."""

P = ParamSpec("P")
R = TypeVar("R")


class Later:
    """A call that ``checked`` makes in place of the function that returned it."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs


def later(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return a call instead of making it, as the last line of a ``checked`` function.

    The decorator makes the call. The stack of a training step then holds the frame of the decorator in place of the
    frame of the function, not both.

    Args:
        function: The function to call.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    return cast("R", Later(function, args, kwargs))


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Raise ``ArgumentError`` with a hint for an argument that the function does not take.

    The function keeps its explicit signature, which editors and ``help()`` show.
    """
    parameters = inspect.signature(function).parameters
    by_position = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= parameters.keys():
            raise _unknown_keyword(function, kwargs, list(parameters))
        if len(args) > len(by_position):
            raise _too_many(function, args[len(by_position)], list(parameters), by_position)
        found = function(*args, **kwargs)
        return found.function(*found.args, **found.kwargs) if isinstance(found, Later) else found

    return call


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name that the user writes: for ``__init__``, the name of the class."""
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def _too_many(function: Callable[..., Any], extra: object, takes: list[str], by_position: list[str]) -> ArgumentError:
    """Return the error for the first positional argument that the function does not take."""
    name, first = _name_of(function), takes[len(by_position)]
    positional = ", ".join(name for name in by_position if name != "self")
    rule = f"takes only {positional} by position; give the others" if positional else "takes arguments only"
    dots = "…, " if positional else ""
    example = f"{name}({dots}{EXAMPLES.get(first, f'{first}=…')})"
    return ArgumentError(f"{name}({dots}{extra!r:.60}): {name} {rule} by name, for example {example}")


def _unknown_keyword(function: Callable[..., Any], given: Mapping[str, object], takes: list[str]) -> ArgumentError:
    """Return the error for the first keyword that the function does not take."""
    key = next(key for key in given if key not in takes)
    name, value = _name_of(function), given[key]
    hint = _hint(name, key, value, takes)
    if hint.split(" ")[0] not in {*SETTINGS, *ARGUMENTS.values()}:
        hint = hint[0].upper() + hint[1:]
    text = shown(key, value) if isinstance(value, str | int | float | None) else "…"
    text = text if len(text) <= MAX_VALUE_CHARS else "…"
    return ArgumentError(f"{name}({key}={text}): no such argument. {hint}{'' if hint.endswith('?') else '.'}")


def _hint(name: str, key: str, value: object, takes: list[str]) -> str:
    """Return what to write in place of a keyword that the function does not take."""
    options = list(SETTINGS)
    known = [option for option in options if option in takes]
    if not known:
        return _hint_of_method(name, key, value, takes)
    if _option(key) in options and _option(key) not in known:
        return f"{_option(key)} is an option of fit and train: leave it out"
    if key in OPTIONS or key in ELSEWHERE:
        return advice_for(OPTIONS.get(key) or ELSEWHERE[key], value)
    arguments = dict.fromkeys(ARGUMENTS.values())
    others = [argument for argument in takes if argument not in ("self", *known, *arguments)]
    close = get_close_matches(ARGUMENTS.get(key, key), [*known, *others, *arguments], n=1)
    if close and close[0] in arguments:
        if close[0] in takes:
            return f"write {_written(key, close[0])}"
        if name in ("evaluate", "test", "predict"):
            return _leave_out(close[0])
        where = f"; {IN_A_LOOP[close[0]]}" if name == "Loop" and close[0] in IN_A_LOOP else ""
        return f"{close[0]} is an argument of fit: write fit(…, {_written(key, close[0])}){where}"
    return f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"


def _written(key: str, argument: str) -> str:
    """Return how to write an argument in place of the keyword of another library."""
    return f"{argument}={'DataLoader(dataset, batch_size=32)' if key in DATASETS else '…'}"


def _leave_out(argument: str) -> str:
    """Return the hint for an argument that only training takes."""
    verbs = "fit" if argument in ("val", "test") else "fit and train"
    return f"{argument} is an argument of {verbs}: leave it out"


def _option(key: str) -> str:
    """Return the option that the hint in ``OPTIONS`` names, or the key itself."""
    return OPTIONS[key].removeprefix("write ").partition("=")[0] if key in OPTIONS else key


def _hint_of_method(verb: str, key: str, value: object, takes: list[str]) -> str:
    """Return the hint for a keyword that a method of the trainer does not take."""
    if "ckpt" in takes and OPTIONS.get(key) == OPTIONS["ckpt_path"]:
        return f"write ckpt={value!r}" if isinstance(value, str) else "write ckpt='best'"
    if key in SETTINGS or key in OPTIONS:
        write, dot, more = advice_for(OPTIONS.get(key, f"write {key}=…"), value).partition("; ")
        return f"it is an option of the trainer: {write} in Trainer(…), before .{verb}(…){dot}{more}"
    if key in ELSEWHERE:
        return advice_for(ELSEWHERE[key], value)
    if ARGUMENTS.get(key) in takes:
        return f"write {_written(key, ARGUMENTS[key])}"
    if ARGUMENTS.get(key, key) in ARGUMENTS.values():
        return _leave_out(ARGUMENTS.get(key, key))
    arguments = [name for name in takes if name != "self"]
    close = get_close_matches(key, arguments, n=1)
    return f"did you mean {close[0]}?" if close else f"the arguments are {', '.join(arguments)}"
