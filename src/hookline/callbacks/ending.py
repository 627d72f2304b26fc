"""How a fit has ended, as its last hook sees it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline.errors import NotAvailableError
from hookline.records.event import put_back

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


def has_returned(run: Run) -> bool:
    """In ``on_teardown``: whether ``fit`` is about to return its result, and not to raise an error or leave."""
    if run.entry_point not in ("fit", "train") or run.loop.engine.requests.agreed.preempt is not None:
        return False
    try:
        return not run.exception
    except NotAvailableError:
        return True


def is_complete(run: Run) -> bool:
    """The same, and nobody has pressed Ctrl-C: the run has come to its own end."""
    stop = run.loop.engine.requests.agreed.stop
    return has_returned(run) and not (stop is not None and stop.interrupt)


def say_put_back(run: Run, step: int, monitor: str, value: float | None) -> None:
    """The model has the weights of an earlier step: on the console, in ``log.txt`` and in the timeline."""
    if run.rank == 0 and step != run.clock.step:
        text = put_back(step, "" if value is None else f"{monitor} {value:.6g} was the best")
        logger.warning("%s", text)  # Python shows warnings also where nobody has set up logging
        run.loop.engine.records.note("restore", text)
