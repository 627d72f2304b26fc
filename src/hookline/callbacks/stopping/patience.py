"""Patience: a number of decisions, or a duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import RegistrationError
from hookline.progress import Duration
from hookline.progress.duration import COUNTS, PASSES

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


def clock_of(run: Run, patience: int | Duration) -> dict[str, float]:
    """Return the clock by unit: a resume may give the patience in another one.

    Seconds are left out unless the patience is in seconds, because they differ between two equal runs.
    """
    units = [*COUNTS, PASSES]
    if not isinstance(patience, int) and patience.of(run.max_duration).unit == "s":
        units.append("s")
    return {unit: run.clock.elapsed(unit) for unit in units}


def with_all_units(run: Run, patience: int | Duration, since: dict[str, float]) -> dict[str, float]:
    """After a resume: a unit that the checkpoint lacks counts from now on."""
    return {**clock_of(run, patience), **since} if since else since


def is_over(run: Run, patience: int | Duration, *, waited: int, since: dict[str, float]) -> bool:
    """After ``waited`` decisions, and since the clock showed ``since``; empty is the start of the run."""
    if isinstance(patience, int):
        return waited >= patience
    length = patience.of(run.max_duration)
    # Rounded: a part of an epoch is a float, and 0.3 - 0.2 is less than 0.1.
    return round(run.clock.elapsed(length.unit) - since.get(length.unit, 0), 9) >= length.value


def in_words(patience: int | Duration, waited: int, decisions: str) -> str:
    """``3 evaluations``, or the duration."""
    return str(patience) if isinstance(patience, Duration) else f"{waited} {decisions}{'' if waited == 1 else 's'}"
