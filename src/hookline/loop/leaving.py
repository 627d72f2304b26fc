"""One rank wants to leave while the others go on: the body of an own loop by ``break`` or ``return``, or a batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hookline.errors import RankError, StopTraining
from hookline.loop.data import END, LEFT

if TYPE_CHECKING:
    from hookline.loop.loop import Loop
    from hookline.loop.ranks import Ranks


def leave_with_others(loop: Loop, look_due: bool, stepped: bool) -> None:
    """Go along with the others, with nothing to add, until the next vote has told them; then end as they do.

    ``stepped``: the body was left after a whole step, whose edge is still to come; ``look_due``: something is due.
    """
    ranks, course, clock = loop.ranks, loop.course, loop.clock
    if ranks is None or ranks.broken:
        return
    ranks.leaves()
    if not ranks.can_go_along and not ranks.have_all_left():
        why = (
            "with several optimizers all ranks must leave it at the same step; use run.stop()"
            if len(loop._names) > 1
            else "before the first forward of a sharded model nobody knows what it would be given; leave after it, or "
            "use run.stop()"
        )
        raise RankError(
            f"rank {loop.state.rank} has left the body of its loop at step {clock.step}, and the others have not: {why}"
        )
    if loop._window and loop._window_full and not loop._batch_open:
        raise RankError(
            f"rank {loop.state.rank} has left the body of its loop inside the update of step {clock.step + 1}, which "
            f"the other ranks make; call run.stop() in a hook, or leave it before loop.step()"
        )
    over = loop.edge(look_due) if stepped else False
    if ranks.is_synced and not stepped:  # what this rank computed is part of the others' step already
        loop._batch_open = True
        loop.step()
        over = loop.edge(loop.look_due)
    while not over:
        made = _step_along(loop, ranks)
        over = loop.edge(loop.look_due) if made else True  # all have left: there was no step
    if course.epoch_open:
        loop._drop_window()
        course.cut_epoch(exhausted=False, position=loop.position, length=math.inf)
        loop.saving.settle()
    loop._leave_if_preempted()
    course.end_training(len(loop.scopes))


def _step_along(loop: Loop, ranks: Ranks) -> bool:
    """One step with the others: their batches are fetched, where ranks agree on the end of the data, and not used."""
    if not loop._window:
        ranks.begin_window()
        loop._skipped = loop._window_full = False
    elif loop._batch_open and not loop._window_full and not _is_counted(loop):
        ranks.idle_batch()  # it was left between its fetch and its backward
    while not loop._window_full:
        part = loop.session.fetch(loop.iterator)
        if part is END or part is LEFT:
            break
        loop.position += 1
        loop.clock.batch += 1
        loop.length = loop.position if part.is_last else loop.length
        loop._window += 1
        if loop.position == loop.length:
            loop.course.at_edge, loop.course.agenda.wake = True, 0
        loop._window_full = loop._window >= loop.accumulate or loop.position == loop.length
        if not loop._window_full:
            ranks.idle_batch()
    loop._batch_open = False
    made = loop._complete_window()
    loop._window = 0
    loop._window_full = False
    return made


def _is_counted(loop: Loop) -> bool:
    """Whether the batch that is open has had its backward."""
    return any(batch == loop._window for batch, _ in loop._weighed.values())


def leave_wait(loop: Loop) -> None:
    """A signal came, or the data stopped the run, while it was waited for: what is half done is dropped."""
    loop._drop_window()
    loop._leave_if_preempted()
    if loop.requests.stop is not None and loop.requests.stop.interrupt:
        loop.saving.interrupted()


def stops_here(loop: Loop) -> bool:
    """Whether a ``StopTraining`` that has come out of the body is a vote to stop; elsewhere it is raised.

    Not in ``evaluate``, ``test`` and ``predict``, where there is no training to stop, and half an answer is a wrong
    one; nor after training. And not on one rank of several, unless its body was left in order: the others would wait
    for it.
    """
    ranks = loop.session.ranks
    trains = loop.entry_point in ("fit", "train") and not loop.requests.is_trained
    return trains and (ranks is None or (loop.is_own and not ranks.broken))


def left_before_end(loop: Loop, entry: str) -> StopTraining:
    """``StopTraining`` in a hook or a task has ended ``evaluate`` or ``test``: no metrics are not its result."""
    stop = loop.requests.stop or loop.requests.wished_stop
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
