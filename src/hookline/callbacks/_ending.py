"""How a ``fit`` has ended, for the last hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline.records.event import restore_text

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


def has_returned(run: Run) -> bool:
    """True in ``on_teardown`` if ``fit`` returns a result, without an error or a signal."""
    return run.is_training_run and (run.ending is None or run.ending.kind not in ("signal", "error"))


def is_complete(run: Run) -> bool:
    """True in ``on_teardown`` if ``fit`` returns a result and the run was not interrupted."""
    return has_returned(run) and not was_interrupted(run)


def was_interrupted(run: Run) -> bool:
    """True if Ctrl-C or ``run.pause`` has ended training. Such a run can resume."""
    return run.ending is not None and run.ending.kind == "interrupt"


def was_cut_short(run: Run) -> bool:
    """True if training has ended before ``max_duration``."""
    return run.ending is not None and run.ending.kind != "duration"


def report_restored(run: Run, step: int, monitor: str, value: float | None) -> None:
    """Report that the model has the weights of an earlier step again.

    The message goes to the console, to ``log.txt`` and to the timeline.
    """
    if run.rank == 0 and step != run.clock.step:
        text = restore_text(step, "" if value is None else f"{monitor} {value:.6g} was the best")
        logger.warning("%s", text)  # Python shows warnings even if the program has not configured logging.
        run.log_event("restore", text)
