"""Compute how many steps a run will have, as far as this is known in advance."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hookline.callbacks.schedule.accumulation_schedule import AccumulationSchedule
from hookline.errors import SetupError
from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run


def steps_in(duration: Duration, run: Run, who: str) -> int:
    """Return a duration in steps or epochs as a number of steps."""
    if duration.unit == "st":
        return int(duration.value)
    if duration.unit in ("ep", PASSES):
        return _steps_in_epochs(duration.value, run, who)
    raise SetupError(
        f"{who}: how many steps are {str(duration)!r}? That is known for steps and epochs only; say how long the "
        f"schedule is, for example total='10000st'"
    )


def epochs_in(duration: Duration, run: Run, who: str) -> int:
    """Return a duration in steps or epochs as a number of epochs, rounded up."""
    if duration.unit in ("ep", PASSES):
        return math.ceil(duration.value)
    steps = steps_in(duration, run, who)
    return math.ceil(steps / _steps_in_epochs(1, run, who))


def length_of_run(run: Run, total: Duration | None, who: str) -> Duration:
    """Return ``total`` if it is given, or else ``max_duration``."""
    if total is not None and total.unit != "dur":
        return total
    if run.max_duration is None:
        raise SetupError(f"{who}: how long? The run has no max_duration; give total='1000st' or '10ep'")
    return run.max_duration if total is None else total.of(run.max_duration)


def _steps_in_epochs(epochs: float, run: Run, who: str) -> int:
    """Return the number of steps in ``epochs``, which may be a fraction. Round up."""
    batches = _batches_in_epoch(run, who)
    whole, part = divmod(Fraction(repr(epochs)), 1)
    # The last epoch may be incomplete.
    last = math.ceil(part * batches)
    accumulation = next((c for c in run.callbacks if isinstance(c, AccumulationSchedule)), None)
    if accumulation is None:
        size = run.accumulate
        return whole * math.ceil(batches / size) + math.ceil(last / size)
    steps = 0
    for epoch, wanted in enumerate([*[batches] * whole, last]):
        done = 0
        while done < wanted:
            factor = accumulation.planned(epoch, steps, done / batches, run)
            if factor is None:
                raise SetupError(
                    f"{who}: AccumulationSchedule changes by {accumulation.unit!r}, so the number of steps is not "
                    f"known before; say how long the schedule is, for example total='10000st'"
                )
            # A schedule in epochs does not change within an epoch.
            if accumulation.unit == "ep":
                steps, done = steps + math.ceil(wanted / factor), wanted
            else:
                steps, done = steps + 1, done + factor
    return steps


def _batches_in_epoch(run: Run, who: str) -> int:
    """Return the number of training batches per epoch."""
    loader: Any = run.loaders.get("train")
    batches = run.num_batches("train", loader)
    if batches is None:
        raise SetupError(
            f"{who}: the training loader ({type(loader).__name__}) has no length, so an epoch is not known in steps; "
            f"say how long the schedule is, for example total='10000st'"
        )
    return batches
