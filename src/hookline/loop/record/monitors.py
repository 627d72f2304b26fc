"""Check that each monitored metric is logged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from hookline.errors import MetricError
from hookline.events import Line, Member
from hookline.events.callback import callback_name
from hookline.events.order import EVERYTHING, declares_writes, overlaps
from hookline.events.spec import BY_NAME, is_resource
from hookline.events.validate import overridden
from hookline.progress import Duration
from hookline.run import RunState
from hookline.run.history import missing_metric

logger = logging.getLogger("hookline")

EVALUATION = ("eval_batch_end", "eval_loader_end", "eval_end")
"""The events at which a callback that declares nothing may log a metric of an evaluation."""

EPOCH_END = ("train_epoch_end", "epoch_end")
"""The events at which such a callback may log a metric after the first interval."""

LATER = ("test/", "predict/")
"""Metrics of what follows training. ``test`` and ``predict`` may also be called separately."""


def check_monitors(
    state: RunState, logged: set[str], *, seen: int, all_loaders: int, logs_losses: bool, task_logs: bool
) -> Doubts:
    """Raise before the first step if a callback monitors a metric that no callback will log.

    A callback that declares neither ``reads`` nor ``writes`` may log any name, and so may ``train_batch`` of a task. A
    metric that only these can log in an evaluation is known only after the evaluation: then the callback that monitors
    it raises.

    Args:
        state: The state of the run.
        logged: The metrics of the sanity check.
        seen: The number of evaluation loaders that the sanity check has used.
        all_loaders: The number of evaluation loaders.
        logs_losses: True if the loop logs the training loss.
        task_logs: True if the task may log metrics in training.

    Returns:
        The metrics that only training can still log.
    """
    line = state.line
    plateaus = _plateau_metrics(state)
    if plateaus and not all_loaders:
        raise MetricError(
            f"ReduceLROnPlateau monitors {plateaus[0]!r} after each evaluation, but fit got no validation "
            f"loader. Write fit(model, train, val, …)."
        )
    known = logged | _written(line)
    undeclared = [member for member in line.members if not _is_declared(member.callback)]
    in_evaluation = bool(all_loaders) and (seen < all_loaders or any(_hears_evaluations(m) for m in undeclared))
    at_epoch_end = any(member.hooks_for(BY_NAME[name]) for member in undeclared for name in EPOCH_END)
    in_training = task_logs or any(not member.is_task for member in undeclared)
    optimizers = state.optimizers if len(state.optimizers) > 1 else ()
    losses = {"train/loss", *(f"train/{name}/loss" for name in optimizers)} if logs_losses else set()
    doubts = []
    for reader, name in _monitored(line, plateaus):
        if _is_known(name, known | losses) or name.startswith(LATER) or ("/" in name and in_evaluation):
            continue
        if name.startswith("val/") and not all_loaders:
            raise MetricError(
                f"{reader} monitors {name!r}, but fit got no validation loader. Write fit(model, train, val, …), or "
                f"monitor a metric of training, such as 'train/loss'. A callback that logs {name!r} must declare it: "
                f"writes = ({name!r},)."
            )
        if "/" not in name or name.startswith("val/") or not in_training:
            raise missing_metric(reader, name, known | losses)
        # In other cases the callback raises when it first needs the metric.
        if name.startswith("train/") or not at_epoch_end:
            doubts.append((reader, name))
    return Doubts(tuple(doubts), frozenset(known))


@dataclass(frozen=True, slots=True)
class Doubts:
    """Monitored metrics that the check before the first step could neither accept nor reject."""

    monitored: tuple[tuple[str, str], ...] = ()
    """Callback and metric. Only training can still log the metric."""
    known: frozenset[str] = frozenset()
    """Metrics that are logged for certain."""


def check_train_monitors(line: Line[Any], logged: set[str], doubts: Doubts) -> None:
    """Raise after the first interval for a training metric that is neither logged nor declared.

    Args:
        line: The callbacks of the run.
        logged: The metrics that are logged so far.
        doubts: The result of ``check_monitors``.
    """
    known = logged | doubts.known | _written(line)
    of_training = [(reader, name) for reader, name in _monitored(line, []) if name.startswith("train/")]
    for reader, name in (*doubts.monitored, *of_training):
        if not _is_known(name, known):
            raise missing_metric(reader, name, known)


def _plateau_metrics(state: RunState) -> list[str]:
    """Return the metric of each ``ReduceLROnPlateau`` of a run."""
    return [scheduler.monitor for scheduler in state.schedulers if scheduler.unit == "eval"]


def _monitored(line: Line[Any], plateaus: list[str]) -> list[tuple[str, str]]:
    """Return the metrics that callbacks and schedulers read, each with the name of its reader."""
    read = [(callback_name(callback), name) for callback in line.order.callbacks for name in callback.reads]
    found = [(reader, name) for reader, name in read if name != EVERYTHING and not is_resource(name)]
    return [*found, *(("ReduceLROnPlateau", name) for name in plateaus)]


def _is_known(name: str, known: set[str]) -> bool:
    """True if a metric is logged.

    The loop logs the average over an epoch for each training metric.
    """
    return any(overlaps(name, other) or name == f"{other}_epoch" for other in known)


def _written(line: Line[Any]) -> set[str]:
    return {name for name in line.written() if not is_resource(name)}


def _is_declared(member: object) -> bool:
    return declares_writes(member) or bool(getattr(member, "reads", ()))


def _hears_evaluations(member: Member[Any]) -> bool:
    events = any(member.hooks_for(BY_NAME[name]) for name in EVALUATION)
    return events or overridden(member.callback, "around_eval") is not None


def warn_of_still_plateau(state: RunState, eval_every: Duration | None, *, has_evaluated: bool) -> None:
    """Warn if ``ReduceLROnPlateau`` never stepped because there was no evaluation.

    Args:
        state: The state of the run.
        eval_every: The option ``eval_every``.
        has_evaluated: True if there was an evaluation in training.
    """
    plateaus, stop = _plateau_metrics(state), state.requests.agreed.stop
    if plateaus and state.clock.step and not has_evaluated and not state.rank and stop is None:
        logger.warning(
            "ReduceLROnPlateau (on %r) never stepped: it needs evaluations, and none was made (eval_every=%s); "
            "in a custom loop, evaluate with loop.eval_batches(…) whenever loop.eval_due",
            *(plateaus[0], eval_every),
        )
