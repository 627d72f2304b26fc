"""Settings as plain values, which every file, sink and page can show."""

from __future__ import annotations

import math
import numbers
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from hookline.records.redact import redact

LONGEST = 500


def plain(value: Any, above: tuple[int, ...] = (), *, tuples: type[list[Any] | tuple[Any, ...]] = list) -> Any:
    """Convert a value to numbers, strings, lists and dicts.

    Dataclasses and namespaces become dicts. All other objects become short strings.

    Args:
        value: The value.
        above: The ids of the objects that contain the value. An object that contains itself becomes a string.
        tuples: The type that replaces a tuple.

    Example:
        >>> plain({"lr": 0.1, "layers": (1, 2), "path": __import__("pathlib").PurePosixPath("a/b")})
        {'lr': 0.1, 'layers': [1, 2], 'path': 'a/b'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy integers are not int.
        return int(value)
    if isinstance(value, numbers.Real):  # JSON has no NaN.
        return float(value) if math.isfinite(value) else str(float(value))
    below = (*above, id(value))
    if (parts := _parts(value)) is not None and id(value) not in above:
        return {key: plain(its, below, tuples=tuples) for key, its in parts.items()}
    if isinstance(value, Mapping) and id(value) not in above:
        return {str(key): plain(its, below, tuples=tuples) for key, its in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and id(value) not in above:
        items = [plain(its, below, tuples=tuples) for its in value]
        return tuples(items) if isinstance(value, tuple) else items
    try:
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the settings in an object, or ``None`` if it has none.

    As one string, they could not be compared one by one, and would be cut.
    """
    if isinstance(value, Namespace | SimpleNamespace):
        return dict(vars(value))
    if not is_dataclass(value) or isinstance(value, type | Mapping) or not _has_usual_words(type(value)):
        return None  # A class with its own repr may hide a field.
    try:
        shown = [field.name for field in fields(value) if field.repr]
        return {name: getattr(value, name) for name in shown if hasattr(value, name)}
    except Exception:  # A field may be a property of the user.
        return None


def _has_usual_words(kind: type) -> bool:
    """True if ``dataclass`` made the ``__repr__`` of a class, and the class has no ``__str__``."""
    made = getattr(kind.__repr__, "__wrapped__", kind.__repr__)  # dataclass wraps it against recursion.
    code = getattr(made, "__code__", None)
    has_own_text = any("__str__" in vars(part) for part in kind.__mro__[:-1])
    return not has_own_text and code is not None and code.co_filename == "<string>"


def public(value: Any) -> Any:
    """Return a value as plain values without secrets."""
    return redact(plain(value, tuples=tuple))  # redact reads a tuple of two as a name and its value.
