"""Which metrics the callbacks of a run monitor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookline.events.spec import is_resource


def monitored_metrics(callbacks: Iterable[Any], schedulers: Iterable[Any] = ()) -> list[str]:
    """The metrics that callbacks decide by, and those of schedulers that step on a plateau, each once.

    A callback says so with ``reads``. One that writes metrics computes these from what it reads, and decides nothing.
    """
    found = [name for callback in callbacks if not any(map(_is_metric, callback.writes)) for name in callback.reads]
    found += [scheduler.monitor for scheduler in schedulers if scheduler.unit == "eval"]
    return [name for name in dict.fromkeys(found) if _is_metric(name) and "*" not in name]


def _is_metric(name: str) -> bool:
    return not is_resource(name)
