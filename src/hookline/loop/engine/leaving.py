"""A wait for data, a batch or an evaluation is left before its end, by a signal or ``StopTraining``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.errors import StopTraining

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
