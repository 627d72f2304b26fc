"""What is measured on each rank before an update, and decided alike by all: each has to leave it out, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.run.requests import StopRequest

if TYPE_CHECKING:
    from hookline.run import Run


def of_all_ranks(run: Run, value: Any) -> list[Any]:
    """A plain value of each rank, by rank; of one process, its own. All ranks must call it."""
    return run.gather(value)


def stop_together(run: Run, reason: str, *, whose: int) -> None:
    """What all ranks have found together needs no vote: the run stops here, for the reason that one of them gives."""
    reason = of_all_ranks(run, reason)[whose]
    run.stop(reason)
    run.loop.engine.requests.agree_on_stop(StopRequest(reason, run.member.name, run.clock.step))


def skip_together(run: Run) -> None:
    """The same for a step that is to be skipped."""
    run.loop.engine.requests.agree_on_skip(run.member.name)
