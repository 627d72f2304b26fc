"""Patience of a callback: a number of decisions, or a duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import RegistrationError
from hookline.progress import Duration
from hookline.progress.duration import COUNTS, PASSES

if TYPE_CHECKING:
    from hookline.run import Run


def read_patience(reader: str, patience: int | str | Duration) -> int | Duration:
    """Return the validated patience: a number of decisions or a duration."""
    if not isinstance(patience, int):
        return Duration.parse(patience, f"{reader}(patience=…)")
    if isinstance(patience, bool) or patience < 0:
        raise RegistrationError(
            f"{reader}(patience={patience!r}): give 0 or more decisions, or a duration such as '2ep'"
        )
    return patience


def clock_of(run: Run, patience: int | Duration) -> dict[str, float]:
    """Return the clock by unit, because a resumed run may give its patience in another unit.

    Seconds are included only if the patience is in seconds, because they differ between two equal runs.
    """
    units = [*COUNTS, PASSES]
    if not isinstance(patience, int) and patience.of(run.max_duration).unit == "s":
        units.append("s")
    return {unit: run.clock.elapsed(unit) for unit in units}


def with_all_units(run: Run, patience: int | Duration, since: dict[str, float]) -> dict[str, float]:
    """Return the clock of a checkpoint. Units that it lacks count from now."""
    return {**clock_of(run, patience), **since} if since else since


def is_over(run: Run, patience: int | Duration, *, waited: int, since: dict[str, float]) -> bool:
    """True if the patience is used up.

    Args:
        run: The run.
        patience: Number of decisions, or a duration.
        waited: Number of decisions so far.
        since: Clock by unit from which a duration counts. Empty: the start of the run.
    """
    if isinstance(patience, int):
        return waited >= patience
    length = patience.of(run.max_duration)
    # Round the difference, because a fraction of an epoch is a float, and 0.3 - 0.2 is less than 0.1.
    return round(run.clock.elapsed(length.unit) - since.get(length.unit, 0), 9) >= length.value


def in_words(patience: int | Duration, waited: int, decisions: str) -> str:
    """Return the patience for messages: ``3 evaluations``, or the duration."""
    return str(patience) if isinstance(patience, Duration) else f"{waited} {decisions}{'' if waited == 1 else 's'}"
