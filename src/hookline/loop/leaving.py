"""The body of an own loop is left on one rank, by ``break`` or ``return``, while the others go on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hookline.errors import RankError
from hookline.loop.data import END, LEFT
from hookline.run import BREAK, StopRequest

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
    ranks.leaving = StopRequest(BREAK, "the body of the loop", clock.step)
    if len(loop._names) > 1 and not ranks.have_all_left():
        raise RankError(
            f"rank {loop.state.rank} has left the body of its loop at step {clock.step}, and the others have not: with "
            f"several optimizers all ranks must leave it at the same step; use run.stop()"
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
