"""Errors for ``StopTraining`` on one of several ranks: the other ranks would wait for it."""

from __future__ import annotations

from hookline.errors import RankError


def stop_in_batch(by: str, reason: str, step: int, where: str = "train_batch") -> RankError:
    """Return the error for ``StopTraining`` in a method of the task.

    Args:
        by: Name of the task.
        reason: Reason of the stop.
        step: Current step.
        where: Name of the method.
    """
    gives = "the prediction" if where == "predict_batch" else "the loss"
    return RankError(
        f"{by} raised StopTraining({reason!r}) in {where} at step {step}: the other ranks would wait for this "
        f"batch; call run.stop({reason!r}) and return {gives}"
    )


def stop_in_data(by: str, reason: str, step: int) -> RankError:
    """Return the error for ``StopTraining`` in a loader.

    Args:
        by: Name of the loader.
        reason: Reason of the stop.
        step: Current step.
    """
    return RankError(
        f"{by} raised StopTraining({reason!r}) instead of its next batch, at step {step}: the other ranks would wait "
        f"for that batch; let it give what it has, and call run.stop({reason!r}) in a hook"
    )


def stop_between(reason: str, step: int) -> RankError:
    """Return the error for ``StopTraining`` in an optimizer, a scheduler or ``Task.count``."""
    return RankError(
        f"StopTraining({reason!r}) was raised at step {step}, and not in a hook: the other ranks would wait for this "
        f"one; call run.stop({reason!r}) in a hook"
    )
