"""What a run says in one line: that it goes on, that it leaves, that it is over, and what makes it longer.

They are warnings of the logger: Python shows these, also where nobody has set up logging. Rank zero speaks for all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline.errors import Preempted, ScopeError, SetupError
from hookline.run.requests import signal_name

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine

logger = logging.getLogger("hookline")

EXTEND = "fit(…, extend='2ep')"


def warn_of_parts(rank: int) -> None:
    """The first epoch of a stream begins, and something is due at parts of an epoch."""
    if not rank:
        logger.warning(
            "A fraction of max_duration is less than an epoch, and the training loader has no length: in the first "
            "epoch the fraction counts as done at the end; later epochs count as long as the one before. Write it in "
            "steps ('100st'), or give the loader a length"
        )


def say_preempted(loop: Engine, error: Preempted) -> None:
    """When all is done, and a signal ends a fit: what another process can go on from, and what went wrong."""
    if error.signal and not loop.state.rank and loop.entry_point in ("fit", "train"):  # 0: by `verify-resume`
        earlier = loop.saving.latest()
        nothing = "nothing was saved" if earlier is None else f"nothing was saved since {earlier.path}"
        saved = nothing if error.checkpoint is None else f"saved {error.checkpoint}"
        logger.warning("%s: %s; the run exits with code %d", signal_name(error.signal), saved, 128 + error.signal)
    for note in getattr(error, "__notes__", ()):  # Python shows no notes of a SystemExit
        logger.error("%s", note)


def say_script_continues(loop: Engine) -> None:
    """After Ctrl-C, when ``fit`` is about to return."""
    if not loop.state.rank:
        logger.warning(
            "interrupted at step %d; the script continues. Press Ctrl-C again to end it, or twice during another fit",
            loop.clock.step,
        )


def say_finished(loop: Engine) -> None:
    """The checkpoint that was loaded is that of a run that has come to its end."""
    if loop.state.rank:
        return
    longer, asked = "give a larger max_duration" if loop.is_custom else EXTEND, loop.state.max_duration
    ignored = asked is not None and not loop.is_custom and not loop.clock.reached(asked)
    also = f", and max_duration={str(asked)!r} does not make it longer" if ignored else ""
    logger.warning("this run is finished (%s)%s; to train longer: %s", loop.stop_reason(), also, longer)


def say_anew(before: Engine, differs: list[str]) -> None:
    """This trainer has trained the model before, and its next fit does not go on from there."""
    if before.clock.step and not before.state.rank:
        logger.warning(
            "this fit begins a new run at step 0, and does not go on at step %d of the last one: %s is another object; "
            "pass the same one again to go on, or use a new Trainer",
            before.clock.step,
            " and ".join(f"{name}=" for name in differs),
        )


def reached_already(loop: Engine) -> SetupError:
    """There is nothing left to train in this process."""
    longer = ": loop.run.max_duration = …" if loop.is_custom else f", or go on with {EXTEND}"
    reached = f"max_duration={str(loop.state.max_duration)!r} is reached already ({loop.clock!r})"
    return SetupError(f"{reached}; give a larger one{longer}")


def under_way(entry: str) -> ScopeError:
    """A hook calls the trainer that has called it."""
    verb = {"test": "evaluate", "evaluate": "evaluate", "predict": "predict"}.get(entry)
    instead = f"ask run.{verb}(loader), which answers at once" if verb else "use another Trainer for another model"
    return ScopeError(f"{entry}(): this trainer is at work on this model already; inside a hook {instead}")
