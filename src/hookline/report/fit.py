"""What is too long for a page: texts and lists are cut, and say so."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 2_000
"""So many characters a setting, a cell or a caption has."""
EVENTS = 400_000
"""So many the texts of all events together."""
MOST = 1_000
"""So many settings, files or differences are listed."""


def cut(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text.

    >>> cut("abcdef", 3)
    'abc… (3 characters more)'
    """
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} characters more)"


def cut_apart(texts: Sequence[str]) -> list[str]:
    """Several texts, from a little before the place where they begin to differ.

    >>> [text[-10:] for text in cut_apart(["a" * 5000 + "1", "a" * 5000 + "2"])]
    ['aaaaaaaaa1', 'aaaaaaaaa2']
    """
    if max(map(len, texts), default=0) <= LONGEST:
        return list(texts)
    pairs = enumerate(zip(min(texts), max(texts), strict=False))
    start = max(0, next((place for place, (one, other) in pairs if one != other), 0) - 100)
    return [f"{'…' if start else ''}{cut(text[start:])}" for text in texts]
