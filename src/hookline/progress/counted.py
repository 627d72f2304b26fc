"""Counts with a noun, for messages."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """Return a count with its noun, in the singular or the plural.

    Args:
        count: The count.
        thing: Noun whose plural ends in "s".

    Example:
        >>> counted(1, "step"), counted(2_000, "epoch")
        ('1 step', '2,000 epochs')
    """
    return f"{count:,} {thing}" + ("" if count == 1 else "s")
