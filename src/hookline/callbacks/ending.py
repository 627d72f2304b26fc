"""How a fit has ended, as its last hook sees it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline.records.event import put_back

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


def has_returned(run: Run) -> bool:
    """True in ``on_teardown`` if ``fit`` is about to return its result, and not to raise an error or leave."""
    return run.is_training_run and (run.ending is None or run.ending.kind not in ("signal", "error"))


def is_complete(run: Run) -> bool:
    """The same, and nobody has pressed Ctrl-C: the run has come to its own end."""
    return has_returned(run) and not was_interrupted(run)


def was_interrupted(run: Run) -> bool:
    """True if Ctrl-C or ``run.pause`` ends training. A resumed run continues it."""
    return run.ending is not None and run.ending.kind == "interrupt"


def was_cut_short(run: Run) -> bool:
    """True if training ends before ``max_duration``."""
    return run.ending is not None and run.ending.kind != "duration"


def say_put_back(run: Run, step: int, monitor: str, value: float | None) -> None:
    """The model has the weights of an earlier step: on the console, in ``log.txt`` and in the timeline."""
    if run.rank == 0 and step != run.clock.step:
        text = put_back(step, "" if value is None else f"{monitor} {value:.6g} was the best")
        logger.warning("%s", text)  # Python shows warnings also where nobody has set up logging
        run.log_event("restore", text)
