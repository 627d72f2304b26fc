"""Shapes of a learning rate schedule, and the number of steps that a schedule covers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from hookline.callbacks.schedule.accumulation_schedule import AccumulationSchedule
from hookline.errors import ArgumentError, SetupError
from hookline.progress import Duration
from hookline.progress.duration import PASSES

if TYPE_CHECKING:
    from hookline.run import Run

OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("start",),
    "linear": ("start", "end"),
    "cosine": ("start", "end"),
    "cosine_restarts": ("start", "end", "cycles"),
    "wsd": ("start", "end", "decay", "decay_shape"),
}
"""Options of each shape, in addition to ``warmup`` and ``total``."""

WARMUP = 0.3
"""Fraction of the cycle in which the learning rate rises, as in PyTorch."""


class Shape:
    """Factor of the learning rate by scheduler step.

    The first ``warmup`` of ``total`` steps rise from ``start`` to 1. Neither the first nor the last step has a
    learning rate of 0: ``end`` applies after the last step. All attributes are plain values, because the scheduler
    saves them.

    Example:
        >>> cosine = Shape("cosine", total=6, warmup=2)
        >>> [round(cosine(move), 2) for move in range(8)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
    """

    def __init__(
        self,
        kind: str,
        *,
        total: float | None = None,
        warmup: float = 0,
        start: float = 0.0,
        end: float = 0.0,
        cycles: int = 2,
        decay: float = 0,
        decay_shape: str = "sqrt",
    ) -> None:
        self.kind = kind
        self.total = total
        self.warmup = warmup
        self.start = start
        self.end = end
        self.cycles = cycles
        self.decay = decay
        self.decay_shape = decay_shape

    def __call__(self, move: float) -> float:
        if move < self.warmup:
            return self.start + (1.0 - self.start) * (move + 1) / self.warmup
        if self.total is None:
            return 1.0
        if move >= self.total:
            return 1.0 if self.kind == "constant" else self.end
        begins = self.total - self.decay if self.kind == "wsd" else self.warmup
        length, moved = self.total - begins, max(0, move - begins)
        if self.kind == "cosine_restarts":
            # Integers are needed: a rounding error could turn a restart into the end of a cosine.
            moved = moved * self.cycles % length
        curve = CURVES[self.decay_shape if self.kind == "wsd" else self.kind]
        return self.end + (1.0 - self.end) * curve(moved / length if length else 0.0)


class MeasuredShape(Shape):
    """Shape whose lengths are samples, tokens or seconds: the factor depends on the clock, not on the step.

    ``position`` is not saved with the scheduler, because it has a slot.
    """

    __slots__ = ("position",)
    position: Callable[[], float]

    def __call__(self, move: float) -> float:
        return super().__call__(self.position())


MEASURED = ("sp", "tok", "s")
"""Units of a ``MeasuredShape``."""


def _half_cosine(done: float) -> float:
    """Return half a cosine wave, from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


CURVES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": _half_cosine,
    "cosine_restarts": _half_cosine,
    "sqrt": lambda done: 1.0 - math.sqrt(done),
}
"""Curves from 1 to 0, as functions of the fraction that is done."""
DECAYS = ("sqrt", "linear", "cosine")


def check_options(kind: str, options: dict[str, object]) -> None:
    """Raise for an option that the shape does not take, or for a value out of range."""
    unknown = [name for name in options if name not in OPTIONS[kind]]
    if unknown:
        raise ArgumentError(
            f"LRSchedule({unknown[0]}=…): {kind!r} has no such option. It has warmup, total, "
            f"{', '.join(OPTIONS[kind])}."
        )
    for name in ("start", "end"):
        value = options.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ArgumentError(f"LRSchedule({name}={value!r}): must be a factor of the learning rate, from 0 to 1.")
    cycles = options.get("cycles", 2)
    if isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1:
        raise ArgumentError(f"LRSchedule(cycles={cycles!r}): must be an integer >= 1.")
    if options.get("decay_shape", "sqrt") not in DECAYS:
        raise ArgumentError(f"LRSchedule(decay_shape={options['decay_shape']!r}): use one of {', '.join(DECAYS)}.")


def one_cycle(optimizer: Optimizer, known: dict[str, Any], who: str) -> LRScheduler:
    """Make the scheduler.

    Args:
        optimizer: The optimizer.
        known: ``total`` and ``warmup`` in scheduler steps, and options of ``OneCycleLR``.
        who: Name of the callback, for errors.
    """
    options = dict(known)
    total, warmup = options.pop("total"), options.pop("warmup", None)
    if total < 4:
        raise SetupError(f"{who}: {total} moves are too few for a climb and a fall; it needs 4 or more")
    if warmup is not None:
        options["pct_start"] = warmup / total
    share = options.get("pct_start", WARMUP)
    # OneCycleLR divides by the length of each phase minus one, so each phase needs two steps.
    options["pct_start"] = min(max(share, 2 / total), 1 - 2 / total)
    options.setdefault("max_lr", [group["lr"] for group in optimizer.param_groups])
    options.setdefault("cycle_momentum", "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum")))
    try:
        return OneCycleLR(optimizer, total_steps=total, **options)
    except (TypeError, ValueError) as error:
        raise SetupError(f"{who} could not be made with {options}: {error}") from error


def steps_in(duration: Duration, run: Run, who: str) -> int:
    """Return a duration in steps or epochs as a number of steps."""
    if duration.unit == "st":
        return int(duration.value)
    if duration.unit in ("ep", PASSES):
        return _steps_in_epochs(duration.value, run, who)
    raise SetupError(
        f"{who}: how many steps are {str(duration)!r}? That is known for steps and epochs only; say how long the "
        f"schedule is, for example total='10000st'"
    )


def epochs_in(duration: Duration, run: Run, who: str) -> int:
    """Return a duration in steps or epochs as a number of epochs, rounded up."""
    if duration.unit in ("ep", PASSES):
        return math.ceil(duration.value)
    steps = steps_in(duration, run, who)
    return math.ceil(steps / _steps_in_epochs(1, run, who))


def length_of_run(run: Run, total: Duration | None, who: str) -> Duration:
    """Return ``total`` if it is given, or else ``max_duration``."""
    if total is not None and total.unit != "dur":
        return total
    if run.max_duration is None:
        raise SetupError(f"{who}: how long? The run has no max_duration; give total='1000st' or '10ep'")
    return run.max_duration if total is None else total.of(run.max_duration)


def _steps_in_epochs(epochs: float, run: Run, who: str) -> int:
    """Return the number of steps in ``epochs``, which may be a fraction. Round up."""
    batches = _batches_in_epoch(run, who)
    whole, part = divmod(Fraction(repr(epochs)), 1)
    # The last epoch may be incomplete.
    last = math.ceil(part * batches)
    accumulation = next((c for c in run.callbacks if isinstance(c, AccumulationSchedule)), None)
    if accumulation is None:
        size = run.accumulate
        return whole * math.ceil(batches / size) + math.ceil(last / size)
    steps = 0
    for epoch, wanted in enumerate([*[batches] * whole, last]):
        done = 0
        while done < wanted:
            factor = accumulation.planned(epoch, steps, done / batches, run)
            if factor is None:
                raise SetupError(
                    f"{who}: AccumulationSchedule changes by {accumulation.unit!r}, so the number of steps is not "
                    f"known before; say how long the schedule is, for example total='10000st'"
                )
            # A schedule in epochs does not change within an epoch.
            if accumulation.unit == "ep":
                steps, done = steps + math.ceil(wanted / factor), wanted
            else:
                steps, done = steps + 1, done + factor
    return steps


def _batches_in_epoch(run: Run, who: str) -> int:
    """Return the number of training batches per epoch."""
    loader: Any = run.loaders.get("train")
    batches = run.num_batches("train", loader)
    if batches is None:
        raise SetupError(
            f"{who}: the training loader ({type(loader).__name__}) has no length, so an epoch is not known in steps; "
            f"say how long the schedule is, for example total='10000st'"
        )
    return batches
