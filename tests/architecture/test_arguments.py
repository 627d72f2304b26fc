"""Every argument of a public class or function is documented, in the order of its signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import hookline as hl
from hookline import callbacks, sinks

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


def public() -> dict[str, Callable[..., Any]]:
    found: dict[str, Any] = {f"hl.{name}": getattr(hl, name) for name in dir(hl) if not name.startswith("_")}
    for module, prefix in ((callbacks, "hl"), (sinks, "hl.sinks")):
        found |= {f"{prefix}.{name}": getattr(module, name) for name in module.__all__}
    ours = {name: it for name, it in found.items() if getattr(it, "__module__", "").startswith("hookline.")}
    is_callback = (callbacks.__name__, sinks.__name__)
    return {
        name: it
        for name, it in ours.items()
        if inspect.isfunction(it) or (inspect.isclass(it) and it.__module__.startswith(is_callback))
    }


def test_every_argument_is_documented_in_the_order_of_the_signature() -> None:
    wrong = []
    for name, it in public().items():
        if name.removeprefix("hl.") in WITHOUT or getattr(it, "_is_protocol", False) or is_dataclass(it):
            continue  # A data class documents its fields one by one.
        try:
            parameters = [its for its in inspect.signature(it).parameters if its not in ("self", "args", "kwargs")]
        except (TypeError, ValueError):
            continue
        if parameters != documented(it.__doc__ or ""):
            wrong.append(f"{name}: takes {parameters}, documents {documented(it.__doc__ or '')}")
    assert wrong == []
