"""The sanity check: two batches of each evaluation loader before step 1."""

from __future__ import annotations

import logging
from typing import Any, Final

from hookline.loop.data.batches import is_one_shot
from hookline.loop.evaluation.evaluate import Evaluator
from hookline.loop.evaluation.tasks import Returning, TaskRunner
from hookline.loop.metrics.book import MetricBook
from hookline.run import RunState
from hookline.run.audience import Audience

logger = logging.getLogger("hookline")

BATCHES: Final = 2


def sanity_check(
    evaluator: Evaluator, tasks: TaskRunner, state: RunState, book: MetricBook, loaders: dict[str | None, Any]
) -> tuple[set[str], int]:
    """Evaluate two batches of each loader with new iterators.

    Hooks hear only ``sanity_check_start`` and ``sanity_check_end``.

    Returns:
        The names of the logged metrics, and the number of loaders that were read. A loader that can be iterated over
        only once is left out.
    """
    line, logged = state.line, set()
    again = {name: loader for name, loader in loaders.items() if not is_one_shot(loader)}
    for name in loaders.keys() - again.keys():
        named = "" if name is None else f" {name!r}"
        logger.warning("the sanity check leaves out the evaluation loader%s: it can be iterated over only once", named)
    if again:
        depth = book.open_layer()  # It also holds what the two hooks log, so that this is dropped.
        try:
            with state.aside("val", Audience.SANITY_CHECK):
                line.emit(line.hooks.sanity_check_start)
                batches = Returning(evaluator.evaluate(again, "val", Audience.SANITY_CHECK, limit=BATCHES))
                tasks.evaluate(batches)
                metrics = batches.value.metrics
                logged = {*metrics, *map(book.inner_name, metrics)}
                line.emit(line.hooks.sanity_check_end)
        finally:
            book.drop_layers(depth)
    return logged, len(again)
