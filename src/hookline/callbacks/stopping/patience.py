"""Patience: a number of decisions, or a duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import RegistrationError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


def read_patience(reader: str, patience: int | str | Duration) -> int | Duration:
    """A number of decisions, or a duration, checked."""
    if not isinstance(patience, int):
        return Duration.parse(patience, f"{reader}(patience=…)")
    if isinstance(patience, bool) or patience < 0:
        raise RegistrationError(
            f"{reader}(patience={patience!r}): give 0 or more decisions, or a duration such as '2ep'"
        )
    return patience


def clock_of(run: Run, patience: int | Duration) -> float:
    """What the clock shows in the unit of the patience; nothing where decisions are counted."""
    return 0 if isinstance(patience, int) else run.clock.elapsed(patience.of(run.max_duration).unit)


def is_over(run: Run, patience: int | Duration, *, waited: int, since: float) -> bool:
    """After ``waited`` decisions, and since the clock showed ``since``."""
    if isinstance(patience, int):
        return waited >= patience
    return clock_of(run, patience) - since >= patience.of(run.max_duration).value


def in_words(patience: int | Duration, waited: int, decisions: str) -> str:
    """``3 evaluations``, or the duration."""
    return str(patience) if isinstance(patience, Duration) else f"{waited} {decisions}{'' if waited == 1 else 's'}"
