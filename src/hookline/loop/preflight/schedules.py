"""Checks of learning rate schedulers and durations against the length of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from torch.optim import lr_scheduler as torch_schedulers

from hookline.loop.preflight.evidence import Evidence, Plan
from hookline.progress import Duration
from hookline.records.finding import Finding

SLACK: Final = 0.1
"""Fraction of the run by which a schedule may be longer or shorter."""
SMALLEST_FACTOR: Final = 1e-6
"""A learning rate that has become smaller than this fraction of its start trains nothing."""
SAMPLES: Final = 64
BEGINNINGS: Final = ("start", "unfreeze", "until", "warmup")
"""Attributes of callbacks that are durations after which something begins or ends."""


def check_schedules(evidence: Evidence) -> Iterator[Finding]:
    """Find schedulers that are longer or shorter than the run."""
    plan = evidence.plan
    for its in evidence.state.schedulers:
        scheduler, unit = its.scheduler, its.unit
        total = {"st": plan.steps, "ep": plan.epochs}.get(unit)
        if type(its).__name__ != "Scheduler" or total is None or not math.isfinite(total):
            continue  # `LRSchedule` knows the length of the run itself.
        per = "step" if unit == "st" else "epoch"
        moves = total // its.every.value
        for level, problem in _problems(scheduler, moves, per, plan):
            yield Finding(
                "error" if level == "error" else "warning",
                "schedule",
                f"{type(scheduler).__name__} {problem}",
                f"The run has {moves:g} scheduler steps, one per {per}. Make the schedule as long, write "
                f"hl.Scheduler(…, every='1ep') for one step per epoch, or use hl.LRSchedule.",
            )


def check_accumulation(evidence: Evidence) -> Iterator[Finding]:
    """Find an accumulation window that is longer than an epoch."""
    batches, accumulate = evidence.plan.batches_per_epoch, evidence.plan.accumulate
    if batches and accumulate > batches:
        yield Finding(
            "warning",
            "accumulate",
            f"accumulate={accumulate} is more than the {batches} batches of an epoch, and the end of an epoch ends "
            f"the window.",
            f"Write accumulate={batches} for one step per epoch, or a smaller number.",
        )


def check_durations(evidence: Evidence) -> Iterator[Finding]:
    """Find callbacks that begin after the end of the run."""
    for callback in evidence.callbacks:
        for name in BEGINNINGS:
            value = getattr(callback, name, None)
            if not isinstance(value, Duration):
                continue
            total = _length(value.unit, evidence)
            if total is not None and value.value >= total:
                yield Finding(
                    "warning",
                    "duration",
                    f"{type(callback).__name__}({name}={str(value)!r}) is not before the end of the run "
                    f"({evidence.state.max_duration}).",
                    "Give a smaller value, or a fraction such as '0.5dur'.",
                )


def _length(unit: str, evidence: Evidence) -> float | None:
    """Return the length of the run in a unit, if it is known."""
    longest = evidence.state.max_duration
    if longest is not None and longest.unit == unit:
        return longest.value
    return {"st": evidence.plan.steps, "ep": evidence.plan.epochs}.get(unit)


def _problems(scheduler: Any, total: float, per: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a scheduler that steps ``total`` times."""
    kind = type(scheduler).__name__
    if kind in OF_KIND:
        yield from OF_KIND[kind](scheduler, total)
    elif kind in ("StepLR", "ExponentialLR", "MultiStepLR"):
        yield from _steps(scheduler, total, per, plan)
    elif isinstance(scheduler, torch_schedulers.SequentialLR):
        yield from _sequence(scheduler, total, per, plan)
    elif isinstance(scheduler, torch_schedulers.ChainedScheduler):
        for inner in vars(scheduler)["_schedulers"]:
            yield from _problems(inner, total, per, plan)


def _one_cycle(scheduler: Any, total: float) -> Iterator[tuple[str, str]]:
    if total > scheduler.total_steps:
        yield "error", f"has total_steps={scheduler.total_steps}, and raises an error after them."
    elif total < scheduler.total_steps * (1 - SLACK):
        yield "warning", f"has total_steps={scheduler.total_steps}, so that the run ends before its last phase."


def _whole(name: str, after: str) -> Callable[[Any, float], Iterator[tuple[str, str]]]:
    """Return the check of a scheduler whose attribute ``name`` is the length of the run."""

    def check(scheduler: Any, total: float) -> Iterator[tuple[str, str]]:
        length = getattr(scheduler, name)
        if length < total * (1 - SLACK):
            yield "warning", f"has {name}={length}, after which the learning rate {after}."
        elif length > total * (1 + SLACK):
            yield "warning", f"has {name}={length}, so that the learning rate does not reach its end."

    return check


def _part(name: str, slack: float = 0.0) -> Callable[[Any, float], Iterator[tuple[str, str]]]:
    """Return the check of a scheduler whose attribute ``name`` is the length of a part of the run."""

    def check(scheduler: Any, total: float) -> Iterator[tuple[str, str]]:
        if getattr(scheduler, name) > total * (1 + slack):
            yield "warning", f"has {name}={getattr(scheduler, name)}, and the run ends before."

    return check


def _sequence(scheduler: Any, total: float, per: str, plan: Plan) -> Iterator[tuple[str, str]]:
    begins = [0, *vars(scheduler)["_milestones"]]
    if begins[-1] >= total:
        yield "warning", f"begins its last scheduler after {begins[-1]} steps, and the run ends before."
        return
    for inner, begin, end in zip(vars(scheduler)["_schedulers"], begins, [*begins[1:], total], strict=True):
        if type(inner).__name__ != "ConstantLR":
            yield from _problems(inner, end - begin, per, plan)


def _steps(scheduler: Any, total: float, per: str, plan: Plan) -> Iterator[tuple[str, str]]:
    kind, gamma = type(scheduler).__name__, scheduler.gamma
    epochs = plan.epochs or math.inf
    if kind == "MultiStepLR":
        milestones = sorted(scheduler.milestones)
        if milestones and milestones[0] > total:
            yield "warning", f"has its first milestone at {milestones[0]}, after the end of the run."
        elif milestones and per == "step" and milestones[-1] <= epochs < total / 10:
            yield "warning", f"has the milestones {milestones}, which look like epochs."
        return
    size = scheduler.step_size if kind == "StepLR" else 1
    if size > total:
        yield "warning", f"has step_size={size}, and the run ends before."
    elif 0 < gamma < 1 and gamma ** (total // size) < SMALLEST_FACTOR:
        yield (
            "warning",
            f"has gamma={gamma:g}, which makes the learning rate {gamma ** (total // size):.1g} of its start.",
        )


def _lambdas(scheduler: Any, total: float) -> Iterator[tuple[str, str]]:
    """Evaluate the functions of a ``LambdaLR`` at some steps of the run."""
    at = sorted({round(total * index / SAMPLES) for index in range(SAMPLES + 1)})
    for function in scheduler.lr_lambdas:
        try:
            factors = [float(function(step)) for step in at]
            later = float(function(round(total * 2)))
        except Exception as error:  # The step at which it fails is unknown, and it would end the run.
            yield "error", f"has a function that raises {type(error).__name__} inside the run: {error}."
            return
        if any(factor < 0 or not math.isfinite(factor) for factor in factors):
            yield "warning", "has a function that returns a negative or infinite factor."
        elif not any(factors):
            yield "warning", "has a function that returns 0 at all steps of the run."
        elif len(at) > 4 and later > factors[-1] and all(a < b for a, b in pairwise(factors)):
            yield "warning", "warms up until the end of the run, and beyond it."


OF_KIND: Final[dict[str, Callable[[Any, float], Iterator[tuple[str, str]]]]] = {
    "OneCycleLR": _one_cycle,
    "CosineAnnealingLR": _whole("T_max", "rises again"),
    "PolynomialLR": _whole("total_iters", "stays at 0"),
    "LinearLR": _part("total_iters"),
    "ConstantLR": _part("total_iters"),
    "CosineAnnealingWarmRestarts": _part("T_0", SLACK),
    "LambdaLR": _lambdas,
}
"""The check of each scheduler of torch, by its class."""
