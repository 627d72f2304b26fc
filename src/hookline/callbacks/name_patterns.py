"""Parts of a model that are chosen by name or by a pattern. All callbacks use this matcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookline.errors import RegistrationError, SetupError


def patterns_of(given: str | Iterable[str], who: str, argument: str = "layers") -> tuple[str, ...]:
    """One name or pattern, or several, as a tuple. ``who`` and ``argument`` are for the error."""
    found = (given,) if isinstance(given, str) else () if isinstance(given, bool) else tuple(given)
    if not found or not all(isinstance(pattern, str) and pattern for pattern in found):
        raise RegistrationError(
            f"{who}({argument}={given!r}): give names of layers or patterns, such as 'encoder' or '*.attn'."
        )
    return found


def patterns_or_all(given: bool | str | Iterable[str], who: str, argument: str = "layers") -> tuple[str, ...] | None:
    """The same; ``None`` for ``True``, which chooses all."""
    if given is False:
        raise RegistrationError(f"{who}({argument}=False): give True for all, or names such as 'encoder' or '*.attn'.")
    return None if given is True else patterns_of(given, who, argument)


def matches(name: str, patterns: Sequence[str] | None) -> bool:
    """Whether a pattern matches a name or one of its parents.

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
    """Raise if a pattern matches none of the names, which are of a ``kind``. The error lists the nearest names."""
    for pattern in patterns or ():
        if not any(matches(name, (pattern,)) for name in names):
            known = dict.fromkeys(part for name in names for part in _with_parents(name))
            close = get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known)[:5]
            raise SetupError(
                f"{who}({argument}={pattern!r}): no {kind} of the model matches. "
                f"The nearest names: {', '.join(close) or 'none'}."
            )


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
