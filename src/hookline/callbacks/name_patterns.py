"""Parts of a model that are chosen by name: a name with all that is inside it, or a pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookline.errors import RegistrationError, SetupError


def patterns_of(given: bool | str | Iterable[str], who: str, argument: str = "layers") -> tuple[str, ...] | None:
    """``None`` for all of them; else names and patterns. ``who`` and ``argument`` are for the error."""
    if given is True:
        return None
    found = (given,) if isinstance(given, str) else given if isinstance(given, bool) else tuple(given)
    if not found or isinstance(found, bool) or not all(isinstance(pattern, str) and pattern for pattern in found):
        raise RegistrationError(f"{who}({argument}={given!r}): give True for all, or names such as 'encoder', '*.attn'")
    return found


def is_meant(name: str, patterns: Sequence[str] | None) -> bool:
    """Whether one of the patterns means this name.

    >>> is_meant("encoder.0.attn", ["encoder"]), is_meant("encoder.0.attn", ["*.attn"]), is_meant("head", ["encoder"])
    (True, True, False)
    """
    if patterns is None:
        return True
    return any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in patterns)


def check_patterns(patterns: Sequence[str] | None, names: Sequence[str], who: str, argument: str = "layers") -> None:
    """Each pattern means at least one of the names; the error has the nearest."""
    for pattern in patterns or ():
        if not any(is_meant(name, (pattern,)) for name in names):
            known = dict.fromkeys([*names, *(name.rpartition(".")[0] for name in names if "." in name)])
            close = get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known)[:5]
            raise SetupError(
                f"{who}({argument}={pattern!r}): the model has no such layer; the nearest: "
                f"{', '.join(close) or 'none, it has no parameters'}"
            )
