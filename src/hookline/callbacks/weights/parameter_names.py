"""Which parameters or parts of a model a list of patterns means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookline.errors import SetupError


def matching(patterns: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """The names that one of the patterns matches, in their own order; each pattern must match something.

    >>> matching(["enc.*"], ["enc.0.weight", "dec.0.weight"], "Pruning(parameters=…)")
    ['enc.0.weight']
    >>> matching(["enk.0.weight"], ["enc.0.weight"], "Pruning(parameters=…)")
    Traceback (most recent call last):
    hookline.errors.SetupError: Pruning(parameters=…): 'enk.0.weight' matches nothing; did you mean 'enc.0.weight'?
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = get_close_matches(pattern, names, n=3, cutoff=0.5)
            known = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there is {known or 'none'}"
            raise SetupError(f"{what}: {pattern!r} matches nothing; {hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
