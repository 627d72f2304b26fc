"""Shorten long strings and lists for a page, and mark them as shortened."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 2_000
"""Maximum number of characters of a setting, a cell or a caption."""
EVENTS = 400_000
"""Maximum number of characters of all events."""
MAX_ITEMS = 1_000
"""Maximum number of settings, files or differences in a list."""


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the start of a string, with the number of characters that were cut.

    >>> cut("abcdef", 3)
    'abc… (3 more characters)'
    """
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} more characters)"


def cut_apart(texts: Sequence[str]) -> list[str]:
    """Return several strings, each from shortly before the first character that differs.

    >>> [text[-10:] for text in cut_apart(["a" * 5000 + "1", "a" * 5000 + "2"])]
    ['aaaaaaaaa1', 'aaaaaaaaa2']
    """
    if max(map(len, texts), default=0) <= LONGEST:
        return list(texts)
    pairs = enumerate(zip(min(texts), max(texts), strict=False))
    start = max(0, next((place for place, (one, other) in pairs if one != other), 0) - 100)
    return [f"{'…' if start else ''}{cut(text[start:])}" for text in texts]
