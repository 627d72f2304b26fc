"""Requirements of callbacks that run training steps before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import NotAvailableError, SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def need_task(run: Run, who: str) -> None:
    """Raise if the run has no task: only a task knows how to train on a batch."""
    try:
        task = run.task
    except NotAvailableError:
        task = None
    if task is None:
        raise SetupError(
            f"{who} runs training steps itself, and an own loop keeps them in its body; use Trainer.fit or hl.fit "
            f"with a model or a task"
        )


def need_one_process(run: Run, who: str) -> None:
    """Raise if the run has several processes."""
    if run.world_size > 1:
        raise SetupError(f"{who} works in one process, and this run has {run.world_size}; find it on one, then set it")
