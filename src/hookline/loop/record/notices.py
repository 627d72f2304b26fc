"""One-line messages about a run: that it resumes, that it ends, and how to continue it.

The messages are logged as warnings, because Python shows warnings also if logging is not configured. Only rank zero
logs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hookline.checkpoint import Checkpoint
from hookline.errors import Preempted, ScopeError, SetupError
from hookline.run import RunState
from hookline.run.requests import signal_name

logger = logging.getLogger("hookline")

EXTEND = "fit(…, extend='2ep')"


def warn_of_epoch_fractions(rank: int) -> None:
    """Warn that a loader without a length has no fractions of an epoch in its first epoch."""
    if not rank:
        logger.warning(
            "A fraction of max_duration is less than an epoch, and the training loader has no length: in the first "
            "epoch the fraction counts as done at the end; later epochs count as long as the one before. Write it in "
            "steps ('100st'), or give the loader a length"
        )


def log_preempted(state: RunState, error: Preempted, latest: Callable[[], Checkpoint | None]) -> None:
    """Log from which checkpoint a run can continue after a signal, and the notes of the error.

    Args:
        state: The state of the run.
        error: The error that ends the process. Its ``signal`` is 0 in ``hookline verify-resume``.
        latest: Returns the newest checkpoint from which the run can resume. It reads the disk.
    """
    if error.signal and not state.rank and state.in_fit:
        earlier = latest()
        nothing = "nothing was saved" if earlier is None else f"nothing was saved since {earlier.path}"
        saved = nothing if error.checkpoint is None else f"saved {error.checkpoint}"
        logger.warning("%s: %s; the run exits with code %d", signal_name(error.signal), saved, 128 + error.signal)
    # Python does not show the notes of a SystemExit.
    for note in getattr(error, "__notes__", ()):
        logger.error("%s", note)


def log_script_continues(state: RunState) -> None:
    """Log that ``fit`` returns after Ctrl-C and does not end the script."""
    if not state.rank:
        logger.warning(
            "interrupted at step %d; the script continues. Press Ctrl-C again to end it, or twice during another fit",
            state.clock.step,
        )


def log_finished(state: RunState, reason: str, *, is_custom_loop: bool) -> None:
    """Log that the loaded checkpoint belongs to a run that is finished.

    Args:
        state: The state of the run.
        reason: Why the run ended.
        is_custom_loop: True if the body of the loop is the user's. Only ``fit`` has ``extend=``.
    """
    if state.rank:
        return
    longer, asked = "give a larger max_duration" if is_custom_loop else EXTEND, state.max_duration
    ignored = asked is not None and not is_custom_loop and not state.clock.reached(asked)
    also = f", and max_duration={str(asked)!r} does not make it longer" if ignored else ""
    logger.warning("this run is finished (%s)%s; to train longer: %s", reason, also, longer)


def log_new_run(before: RunState, differs: Sequence[str]) -> None:
    """Log that a trainer does not continue its last run of the same model.

    Args:
        before: The state of the last run.
        differs: The arguments of ``fit`` that are other objects than in the last run.
    """
    if before.clock.step and not before.rank:
        logger.warning(
            "this fit begins a new run at step 0, and does not continue at step %d of the last one: %s is another "
            "object; pass the same one again to continue, or use a new Trainer",
            before.clock.step,
            " and ".join(f"{name}=" for name in differs),
        )


def reached_already(state: RunState, *, is_custom_loop: bool) -> SetupError:
    """Return the error for a run that has reached ``max_duration`` before its first step.

    Args:
        state: The state of the run.
        is_custom_loop: True if the body of the loop is the user's. Only ``fit`` has ``extend=``.
    """
    longer = ": loop.run.max_duration = …" if is_custom_loop else f", or continue with {EXTEND}"
    reached = f"max_duration={str(state.max_duration)!r} is reached already ({state.clock!r})"
    return SetupError(f"{reached}; give a larger one{longer}")


def under_way(entry: str) -> ScopeError:
    """Return the error for a hook that calls the trainer that runs the hook."""
    verb = {"test": "evaluate", "evaluate": "evaluate", "predict": "predict"}.get(entry)
    instead = f"ask run.{verb}(loader), which answers at once" if verb else "use another Trainer for another model"
    return ScopeError(f"{entry}(): this trainer is at work on this model already; inside a hook {instead}")
