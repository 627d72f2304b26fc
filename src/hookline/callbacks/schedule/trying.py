"""What a finder needs, to try things out before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import NotAvailableError, SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def need_task(run: Run, who: str) -> None:
    """Without a task a finder does not know what to do with a batch."""
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
    if run.world_size > 1:
        raise SetupError(f"{who} works in one process, and this run has {run.world_size}; find it on one, then set it")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up: that of Python, of torch on any device, or of a library below."""
    if isinstance(error, MemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in words for sign in SIGNS)


SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed", "not enough memory")
"""What torch, CUDA, cuBLAS and others write when memory is used up."""
