"""Errors of a rank that leaves a batch by ``StopTraining``: the other ranks would wait for it."""

from __future__ import annotations

from hookline.errors import RankError


def stop_in_batch(by: str, reason: str, step: int, where: str = "train_batch") -> RankError:
    """``StopTraining`` in a method of the task that gives something for each batch."""
    gives = "the prediction" if where == "predict_batch" else "the loss"
    return RankError(
        f"{by} raised StopTraining({reason!r}) in {where} at step {step}: the other ranks would wait for this "
        f"batch; call run.stop({reason!r}) and return {gives}"
    )


def stop_in_data(by: str, reason: str, step: int) -> RankError:
    """``StopTraining`` in the ``__iter__`` of a loader, or in what gives its next batch."""
    return RankError(
        f"{by} raised StopTraining({reason!r}) instead of its next batch, at step {step}: the other ranks would wait "
        f"for that batch; let it give what it has, and call run.stop({reason!r}) in a hook"
    )


def stop_between(reason: str, step: int) -> RankError:
    """``StopTraining`` in what is neither: an optimizer, a scheduler, ``Task.count``."""
    return RankError(
        f"StopTraining({reason!r}) was raised at step {step}, and not in a hook: the other ranks would wait for this "
        f"one; call run.stop({reason!r}) in a hook"
    )
