"""Before step 1: does the evaluation work, and does somebody log every metric that is monitored?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookline.loop.data.batches import is_one_shot
from hookline.loop.evaluation.evaluate import evaluation
from hookline.loop.evaluation.tasks import Returning, evaluate_task
from hookline.loop.record.monitors import check_monitors
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.run.audience import Audience

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

logger = logging.getLogger("hookline")

BATCHES = 2


def sanity_check(loop: Loop, loaders: dict[str | None, Any]) -> None:
    """Two batches of each evaluation loader, on fresh iterators; only ``sanity_check_*`` is sent."""
    line = loop.line
    again = {name: loader for name, loader in loaders.items() if not is_one_shot(loader)}
    for name in loaders.keys() - again.keys():
        named = "" if name is None else f" {name!r}"
        logger.warning("the sanity check leaves out the evaluation loader%s: it can be iterated over only once", named)
    logged: set[str] = set()
    if again:
        with _without_trace(loop):
            line.emit(line.hooks.sanity_check_start)
            batches = Returning(evaluation(loop, again, "val", Audience.SANITY_CHECK, limit=BATCHES))
            evaluate_task(loop, batches)
            logged.update(batches.value, map(loop.session.book.inner_name, batches.value))
            line.emit(line.hooks.sanity_check_end)
    loop.course.agree()  # one rank may have asked to stop
    if loop.requests.agreed.stop is not None:
        return  # it may have been left, and nothing is trained
    loop.course.doubts = check_monitors(
        loop.state,
        logged,
        seen=len(again),
        all_loaders=len(loaders),
        logs_losses=bool(loop.settings.log_every),
        task_logs=type(loop.session.task) is not SupervisedTask,
    )


@contextmanager
def _without_trace(loop: Loop) -> Iterator[None]:
    """What its two hooks log, numbers or pictures, is forgotten as well."""
    session = loop.session
    depth = session.book.open_layer()
    try:
        with loop.state.aside("val", Audience.SANITY_CHECK):
            yield
    finally:
        session.book.drop_layers(depth)
