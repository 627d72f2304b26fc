"""A wait for data, a batch or an evaluation is left before its end, by a signal or ``StopTraining``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import RankError, StopTraining

if TYPE_CHECKING:
    from hookline.loop.loop import Loop


def leave_wait(loop: Loop) -> None:
    """A signal came, or the data stopped the run, while it was waited for: what is half done is dropped."""
    loop._drop_window()
    loop._leave_if_preempted()
    if loop.requests.is_interrupted:
        loop.saving.interrupted()


def stops_here(loop: Loop) -> bool:
    """Whether a ``StopTraining`` that has come out of the body is a vote to stop; elsewhere it is raised.

    Not in ``evaluate``, ``test`` and ``predict``, where there is no training to stop, and half an answer is a wrong
    one; nor after training. And not on one rank of several, unless its body was left in order: the others would wait
    for it.
    """
    world = loop.session.world
    trains = loop.entry_point in ("fit", "train") and not loop.requests.is_trained
    return trains and (world.is_alone or (loop.is_own and not world.broken))


def left_before_end(loop: Loop, entry: str) -> StopTraining:
    """``StopTraining`` in a hook or a task has ended ``evaluate`` or ``test``: no metrics are not its result."""
    stop = loop.requests.agreed.stop or loop.requests.unheard_stop
    error = StopTraining() if stop is None else StopTraining(stop.reason)
    by = "it" if stop is None else stop.by
    error.add_note(f"raised by {by}: {entry} has ended before its last batch, and measured nothing")
    return error


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
