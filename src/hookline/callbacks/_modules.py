"""Select layers and parameters by name or pattern, in the same way for all callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookline.errors import ArgumentError, SetupError


def patterns_of(given: str | Iterable[str], who: str, argument: str = "layers") -> tuple[str, ...]:
    """Return names or patterns as a tuple. ``who`` and ``argument`` are for the error."""
    found = (given,) if isinstance(given, str) else () if isinstance(given, bool) else tuple(given)
    if not found or not all(isinstance(pattern, str) and pattern for pattern in found):
        raise ArgumentError(
            f"{who}({argument}={given!r}): give names of layers or patterns, such as 'encoder' or '*.attn'."
        )
    return found


def patterns_or_all(given: bool | str | Iterable[str], who: str, argument: str = "layers") -> tuple[str, ...] | None:
    """Return the patterns as a tuple, or ``None`` for ``True``, which selects everything."""
    if given is False:
        raise ArgumentError(f"{who}({argument}=False): give True for all, or names such as 'encoder' or '*.attn'.")
    return None if given is True else patterns_of(given, who, argument)


def matches(name: str, patterns: Sequence[str] | None) -> bool:
    """True if a pattern matches a name or one of its parents. ``None`` matches every name.

    Example:
        >>> matches("encoder.0.attn.proj", ["encoder"]), matches("encoder.0.attn.proj", ["*.attn"])
        (True, True)
        >>> matches("head", ["encoder"]), matches("head", None)
        (False, True)
    """
    if patterns is None:
        return True
    return any(fnmatchcase(part, pattern) for part in _with_parents(name) for pattern in patterns)


def check_patterns(
    patterns: Sequence[str] | None, names: Sequence[str], who: str, argument: str = "layers", kind: str = "layer"
) -> None:
    """Raise if a pattern matches none of the names. The error lists the closest names.

    Args:
        patterns: Names or patterns. ``None``: no check.
        names: Names in the model.
        who: Name of the callback, for the error.
        argument: Name of the callback's argument, for the error.
        kind: What the names refer to, for the error: ``"layer"``, for example.
    """
    for pattern in patterns or ():
        if not any(matches(name, (pattern,)) for name in names):
            known = dict.fromkeys(part for name in names for part in _with_parents(name))
            close = get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known)[:5]
            raise SetupError(
                f"{who}({argument}={pattern!r}): no {kind} of the model matches. "
                f"The nearest names: {', '.join(close) or 'none'}."
            )


def _with_parents(name: str) -> Iterator[str]:
    """Yield a dotted name and the names of its parents."""
    while name:
        yield name
        name = name.rpartition(".")[0]
