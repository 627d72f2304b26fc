"""Decide which checkpoints to keep. The store deletes the others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hookline.checkpoint.inspect import Checkpoint
from hookline.checkpoint.snapshot import About
from hookline.errors import ArgumentError
from hookline.progress import Duration
from hookline.progress.duration import PASSES


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints to keep: the last ones, the best ones, and one per interval.

    A checkpoint is kept if one of the rules keeps it.

    Args:
        last: Number of newest checkpoints to keep.
        best: Number of best checkpoints to keep.
        monitor: Name of the metric for ``best``.
        mode: ``"min"`` or ``"max"``: whether a smaller or a larger value of the metric is better.
        every: Keep one checkpoint per interval: a duration in steps, epochs, samples or seconds, or its string.

    Raises:
        ArgumentError: If a value is invalid, or if the rules would keep no checkpoint.

    Example:
        >>> Keep(last=3, best=1, monitor="val/loss", every="1000st")
        Keep(last=3, best=1, monitor='val/loss', mode='min', every=Duration.parse('1000st'))
    """

    last: int = 1
    best: int = 0
    monitor: str | None = None
    mode: Literal["min", "max"] = "min"
    every: Duration | str | None = None

    def __post_init__(self) -> None:
        _check_count("last", self.last)
        _check_count("best", self.best)
        if self.mode not in ("min", "max"):
            raise ArgumentError(f"Keep(mode={self.mode!r}): must be 'min' (smaller is better) or 'max'.")
        if self.best and not self.monitor:
            raise ArgumentError(f"Keep(best={self.best}): needs a metric. Add monitor='val/loss'.")
        if self.monitor and not self.best:
            raise ArgumentError(f"Keep(monitor={self.monitor!r}, best=0): keeps none for the metric. Write best=1.")
        if not (self.last or self.best or self.every):
            raise ArgumentError("Keep(last=0): keeps nothing. Give best= or every= as well.")
        if self.every is not None:
            object.__setattr__(self, "every", _countable(Duration.parse(self.every)))


def to_delete(checkpoints: Iterable[Checkpoint], keep: Keep, *, is_finished: bool = False) -> list[Checkpoint]:
    """Return the checkpoints that no rule keeps, oldest first.

    - Checkpoints are ordered by generation, step and time. The newest one is always kept, and so is the newest one
      that a resume can use: it is exact and has more than weights. With ``last=0``, both are kept only until the run
      is finished.
    - Only exact checkpoints count for ``last``, ``best`` and ``every``. A checkpoint that was saved after an error is
      kept while it is the newest.
    - ``best``: a checkpoint without the metric, or with NaN, is never the best. Of equal values the earlier one is
      better: later checkpoints repeat the value until the next evaluation, and the earliest is closest to the weights
      that were evaluated.
    - ``every``: the first checkpoint at or after each multiple is kept, except for zero. If two generations passed
      the same multiple, the closer one is kept, or the later one if both are equally close.

    Deleting after each save keeps the same checkpoints as deleting once at the end, if ``keep`` does not change.

    Args:
        checkpoints: The checkpoints of a run.
        keep: The rules.
        is_finished: True if training is complete.

    Example:
        >>> import tempfile, torch
        >>> from hookline.checkpoint import Snapshot, Store
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step, loss in enumerate([0.9, 0.3, 0.5, 0.6]):
        ...         about = About(step, 0, step, step, 0.0, "run", metrics={"val/loss": loss})
        ...         saved = Store(folder).save(Snapshot(about, {"weight": torch.ones(1)}))
        ...     gone = to_delete(Store(folder).checkpoints(), Keep(last=1, best=1, monitor="val/loss"))
        >>> [checkpoint.about.step for checkpoint in gone]
        [0, 2]
    """
    ordered = sorted(checkpoints, key=_age)
    exact = [checkpoint for checkpoint in ordered if checkpoint.about.exact]
    kept = _milestones(exact, keep)
    if keep.monitor is not None:
        kept += best(exact, keep.monitor, keep.mode, keep.best)
    if keep.last or not is_finished or not kept:
        kept += [*ordered[-1:], *resumable(ordered)[-1:], *exact[max(0, len(exact) - keep.last) :]]
    names = {checkpoint.name for checkpoint in kept}
    return [checkpoint for checkpoint in ordered if checkpoint.name not in names]


def _age(checkpoint: Checkpoint) -> tuple[int, int, float, str]:
    about = checkpoint.about
    return about.generation, about.step, checkpoint.manifest.created, checkpoint.name


def resumable(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that a resume can use: exact, and with more than weights."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.about.exact and not checkpoint.weights_only]


def best(checkpoints: Iterable[Checkpoint], monitor: str, mode: str, count: int) -> list[Checkpoint]:
    """Return up to ``count`` exact checkpoints with the best values of a metric, best first."""
    sign = 1 if mode == "min" else -1
    exact = [checkpoint for checkpoint in sorted(checkpoints, key=_age) if checkpoint.about.exact]
    valued = [(sign * checkpoint.about.metrics.get(monitor, math.nan), checkpoint) for checkpoint in exact]
    ranked = sorted((pair for pair in valued if not math.isnan(pair[0])), key=lambda pair: pair[0])
    return [checkpoint for _, checkpoint in ranked[:count]]  # The sort is stable: of equal values the earlier is first.


def _milestones(ordered: list[Checkpoint], keep: Keep) -> list[Checkpoint]:
    if keep.every is None:
        return []
    every = Duration.parse(keep.every)
    value = float(every.value)
    first: dict[int, tuple[float, int, Checkpoint]] = {}
    for checkpoint in ordered:
        reached, step = _reached(checkpoint.about, every.unit), checkpoint.about.step
        multiple = int(round(reached / value, 9))  # Rounded, because 0.3 / 0.1 is slightly less than 3.
        if multiple and (multiple not in first or (reached, step) <= first[multiple][:2]):
            first[multiple] = (reached, step, checkpoint)
    return [checkpoint for *_, checkpoint in first.values()]


def _reached(about: About, unit: str) -> int | float:
    units = {"st": about.step, "ep": about.epoch, "sp": about.sample, "s": about.seconds}
    return {**units, PASSES: max(about.passes, about.epoch)}[unit]


def _countable(every: Duration) -> Duration:
    if every.unit == "tok":
        raise ArgumentError(f"Keep(every='{every}'): a checkpoint does not count tokens. Use st or sp.")
    if every.unit == "dur":
        raise ArgumentError(f"Keep(every='{every}'): is a fraction of max_duration. Resolve it with .of(max_duration).")
    return every


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"Keep({name}={value!r}): must be an integer, 0 or more.")
