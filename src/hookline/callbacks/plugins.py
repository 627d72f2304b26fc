"""Callbacks of other packages, found by their entry points and loaded only on request.

A package declares factories in its ``pyproject.toml``::

    [project.entry-points."hookline.callbacks"]
    company = "our_package.callbacks:standard"

``standard()`` returns one callback or a list of callbacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from hookline.errors import SetupError
from hookline.events import Callback

GROUP = "hookline.callbacks"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One factory of callbacks in an installed package."""

    name: str
    target: str
    """Location of the factory: ``package.module:function``."""
    package: str
    """Name and version of the package that declares the factory."""


def installed() -> list[Plugin]:
    """Return the factories of all installed packages, without importing the packages."""
    return [Plugin(point.name, point.value, _package(point)) for point in _points()]


def from_plugins(*names: str) -> list[Callback]:
    """Return the callbacks of installed packages.

    Hookline never adds them itself: ``Trainer(callbacks=[*hl.callbacks.from_plugins("company"), …])``.

    Args:
        *names: Names of the factories to call. Without names, all factories.

    Raises:
        SetupError: If no package declares a name, or a factory does not return callbacks.

    Example:
        >>> from_plugins()
        []
    """
    points = _points()
    known = {point.name for point in points}
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            there = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(sorted(known)) or 'none'}"
            raise SetupError(f"no package offers callbacks as {name!r}; {there} (`hookline callbacks` lists them)")
    return [callback for point in points if not names or point.name in names for callback in _made(point)]


def _points() -> list[EntryPoint]:
    """Return the entry points in a fixed order."""
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def _package(point: EntryPoint) -> str:
    """Return name and version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"


def _made(point: EntryPoint) -> list[Callback]:
    """Call a factory and return its callbacks."""
    where = f"{point.value} of {_package(point)}, which offers callbacks as {point.name!r},"
    try:
        made = point.load()()
    except Exception as error:
        error.add_note(f"in {where.rstrip(',')}")
        raise
    found = list(made) if isinstance(made, Iterable) else [made]
    for callback in found:
        if not isinstance(callback, Callback):
            raise SetupError(f"{where} gave {callback!r:.80}; it must give a callback or a list of them")
    return found
