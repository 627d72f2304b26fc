"""Metrics that callbacks monitor: does somebody log each of them?"""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hookline.errors import MetricError
from hookline.events import Line
from hookline.events.order import EVERYTHING, overlaps
from hookline.events.spec import is_resource
from hookline.events.validate import overridden
from hookline.loop.schedulers import Scheduler

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

logger = logging.getLogger("hookline")

EVAL_HOOKS = (
    "on_event",
    "on_eval_batch_end",
    "on_eval_loader_end",
    "on_eval_end",
    "around_eval",
)


def check_monitors(
    line: Line[Any], logged: set[str], schedulers: list[Scheduler], *, seen: int, all_loaders: int
) -> None:
    """A monitored evaluation metric that nobody feeds is an error now, not after an epoch.

    Callbacks and tasks that declare no ``writes`` but have evaluation hooks may log it there; then the
    reader itself says so at the first evaluation.
    """
    on_plateau = [scheduler for scheduler in schedulers if scheduler.unit == "eval"]
    if on_plateau and not all_loaders:
        raise MetricError(
            f"ReduceLROnPlateau (on {on_plateau[0].monitor!r}) moves after each evaluation, and no validation loader "
            f"was passed, so that it would never move: write fit(model, train, val, …)"
        )
    if all_loaders and (seen < all_loaders or _somebody_may_log(line)):
        return
    known = logged | _written(line)
    readers = [(repr(callback), name) for callback in line.order.callbacks for name in callback.reads]
    readers += [("ReduceLROnPlateau", scheduler.monitor) for scheduler in on_plateau]
    for reader, name in readers:
        evaluation_metric = name.startswith("val/") or "/" not in name
        if is_resource(name) or name == EVERYTHING or not evaluation_metric:
            continue
        if not any(overlaps(name, other) for other in known):
            if name.startswith("val/") and not all_loaders:
                raise MetricError(
                    f"{reader} reads {name!r}, and no validation loader was passed: write fit(model, train, val, …), "
                    f"or monitor a metric of training, such as 'train/loss'. {_says_so(name)}"
                )
            raise _nobody_logs(reader, name, known | {"train/loss"})


def _written(line: Line[Any]) -> set[str]:
    return {name for member in line.members for name in getattr(member.callback, "writes", ())}


def _somebody_may_log(line: Line[Any]) -> bool:
    members = [member.callback for member in line.members]
    silent = [m for m in members if not getattr(m, "writes", ()) and not getattr(m, "reads", ())]
    return any(overridden(member, hook) for member in silent for hook in EVAL_HOOKS)


def check_train_monitors(line: Line[Any], known: set[str]) -> None:
    """After the first interval: a ``train/…`` metric that nobody has logged or declared."""
    for callback in line.order.callbacks:
        for name in callback.reads:
            written = {w for member in line.members for w in getattr(member.callback, "writes", ())}
            if name.startswith("train/") and not any(
                overlaps(name, k) or name == f"{k}_epoch" for k in known | written
            ):
                raise _nobody_logs(repr(callback), name, known | written)


def warn_of_still_plateau(loop: Loop) -> None:
    """At the end of training: a scheduler that waited for evaluations in vain. Before, a callback might ask for one."""
    on_plateau = [scheduler for scheduler in loop.state.schedulers if scheduler.unit == "eval"]
    stop = loop.requests.stop
    if on_plateau and loop.clock.step and not loop.course.has_evaluated and not loop.state.rank and stop is None:
        logger.warning(
            "ReduceLROnPlateau (on %r) never moved: it needs evaluations, and none was made (eval_every=%s); "
            "in an own loop, evaluate with loop.eval_batches(…) whenever loop.eval_due",
            *(on_plateau[0].monitor, loop.settings.eval_every),
        )


def _nobody_logs(reader: str, name: str, known: set[str]) -> MetricError:
    close = get_close_matches(name, known, n=1) or [k for k in known if k.rpartition("/")[2] == name]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return MetricError(
        f"{reader} reads {name!r}, which nobody logs; {hint}known: {', '.join(sorted(known))}. {_says_so(name)}"
    )


def _says_so(name: str) -> str:
    """How a callback or a function declares a metric that it logs."""
    return f"A callback that logs it says so with writes = ({name!r},), a function with hl.on(…, writes=({name!r},))"
