"""Search for the largest batch size that fits, independent of what must fit."""

from __future__ import annotations

from collections.abc import Callable


def largest(
    fits: Callable[[int], bool], *, start: int, limit: int, trials: int, bisect: bool, margin: float = 0.0
) -> int | None:
    """Return the largest size that fits, or ``None`` if not even 1 fits.

    Args:
        fits: Function that tries a size.
        start: First size. It is doubled until a size does not fit.
        limit: Largest size to try.
        trials: Largest number of sizes to try.
        bisect: Also bisect between the last size that fits and the first that does not.
        margin: Fraction to leave free below the bisected size.

    Example:
        >>> largest(lambda size: size <= 100, start=2, limit=8192, trials=25, bisect=False)
        64
        >>> largest(lambda size: size <= 100, start=2, limit=8192, trials=25, bisect=True)
        100
    """
    good, bad, size = 0, 0, min(start, limit)
    while trials > 0 and not bad:
        trials -= 1
        if fits(size):
            good = size
            if size == limit:
                break
            size = min(size * 2, limit)
        else:
            bad = size
    # Halve the size if even the first one was too large.
    while bad and not good and bad > 1 and trials > 0:
        trials -= 1
        size = bad // 2
        good, bad = (size, bad) if fits(size) else (0, size)
    if bisect and bad and good:
        good = _bisected(fits, good, bad, trials)
        good = max(1, int(good * (1.0 - margin)))
    return good or None


def _bisected(fits: Callable[[int], bool], good: int, bad: int, trials: int) -> int:
    """Bisect between a size that fits and one that does not."""
    while trials > 0 and bad - good > 1:
        trials -= 1
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
