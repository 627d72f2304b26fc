"""Metrics that the callbacks of a run monitor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookline.events.spec import is_resource


def monitored_metrics(callbacks: Iterable[Any], schedulers: Iterable[Any] = ()) -> list[str]:
    """Return the metrics that callbacks and plateau schedulers use for decisions.

    Callbacks declare these metrics in ``reads``. A callback that also writes metrics does not count: it computes new
    metrics from those that it reads, and decides nothing.

    Args:
        callbacks: The callbacks of a run.
        schedulers: The learning rate schedulers of the run.

    Returns:
        The names without duplicates and without patterns such as ``"val/*"``.
    """
    found = [name for callback in callbacks if not any(map(_is_metric, callback.writes)) for name in callback.reads]
    found += [scheduler.monitor for scheduler in schedulers if scheduler.unit == "eval"]
    return [name for name in dict.fromkeys(found) if _is_metric(name) and "*" not in name]


def _is_metric(name: str) -> bool:
    return not is_resource(name)
