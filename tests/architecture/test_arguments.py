"""Every argument of a public class or function is documented, in the order of its signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import hookline as hl
from hookline import callbacks, interop, sinks, testing
from hookline.events import Messages
from hookline.progress import Schedule
from hookline.run import History
from hookline.run.callbacks import Callbacks
from hookline.run.run import LatestMetrics, Loaders

WITHOUT = {"LambdaCallback"}
"""Classes whose arguments are the names of hooks."""


def documented(doc: str) -> list[str]:
    """The names in the section ``Args:`` of a docstring.

    >>> documented(\"\"\"Do it.
    ...
    ... Args:
    ...     first: One.
    ...     *rest: More
    ...         of it.
    ... \"\"\")
    ['first', 'rest']
    """
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", f"{inspect.cleandoc(doc)}\n", flags=re.MULTILINE)
    return [] if section is None else re.findall(r"^    \*{0,2}(\w+): ", section[1], flags=re.MULTILINE)


IN_HANDS = (
    *(hl.Run, hl.Loop, hl.Trainer, hl.Result, hl.Task, hl.SupervisedTask, hl.Callback, hl.Duration),
    *(Callbacks, History, LatestMetrics, Loaders, Messages, Schedule, testing.Driven, testing.Recorder),
)
"""The classes whose methods a user calls or overrides."""


def methods() -> dict[str, Callable[..., Any]]:
    """The public methods of these classes. The arguments of a hook are those of every hook."""
    found: dict[str, Any] = {}
    for owner in IN_HANDS:
        for name, method in vars(owner).items():
            function = getattr(method, "__func__", method)  # a class method
            if inspect.isfunction(function) and not name.startswith(("_", "on_", "around_")):
                found[f"{owner.__name__}.{name}"] = function
    return found


def public() -> dict[str, Callable[..., Any]]:
    found: dict[str, Any] = {f"hl.{name}": getattr(hl, name) for name in hl.__all__}
    for module, prefix in ((callbacks, "hl"), (sinks, "hl.sinks"), (interop, "hl.interop"), (testing, "testing")):
        found |= {f"{prefix}.{name}": getattr(module, name) for name in module.__all__}
    ours = {name: it for name, it in found.items() if getattr(it, "__module__", "").startswith("hookline.")}
    called = {name: it for name, it in ours.items() if inspect.isfunction(it) or inspect.isclass(it)}
    return {name: it for name, it in called.items() if not is_error(it)} | methods()


def is_error(it: Any) -> bool:
    return inspect.isclass(it) and issubclass(it, BaseException)


def test_every_argument_is_documented_in_the_order_of_the_signature() -> None:
    wrong = []
    for name, it in public().items():
        if name.removeprefix("hl.") in WITHOUT or getattr(it, "_is_protocol", False) or is_dataclass(it):
            continue  # A data class documents its fields one by one.
        try:
            parameters = inspect.signature(it).parameters.values()
        except (TypeError, ValueError):
            continue
        doc = (it.__doc__ if inspect.isclass(it) else inspect.getdoc(it)) or ""  # A method may inherit its text.
        more = {its.name for its in parameters if its.kind in (its.VAR_POSITIONAL, its.VAR_KEYWORD)}
        taken = [its.name for its in parameters if its.name not in ("self", "cls", *more)]
        if taken != (found := [its for its in documented(doc) if its not in more]):
            wrong.append(f"{name}: takes {taken}, documents {found}")
    assert wrong == []
