"""How many of something, in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """So many things of a name that takes an s.

    >>> counted(1, "step"), counted(2_000, "epoch")
    ('1 step', '2,000 epochs')
    """
    return f"{count:,} {thing}" + ("" if count == 1 else "s")
