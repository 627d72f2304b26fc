"""``TimeRemaining``: elapsed and remaining time of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from hookline.callbacks.watch._interval import Aside, IntervalMonitor
from hookline.callbacks.watch.progress.tracks import length
from hookline.progress.duration import same_scale

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

NEARLY = 1e-9
"""Tolerance for computed counts that should be integers."""


class Mark(NamedTuple):
    """Progress of training at one time."""

    seconds: float
    """Seconds without evaluations."""
    position: float
    """Progress in the unit of ``max_duration``."""


class TimeRemaining(IntervalMonitor):
    """Log ``time/elapsed`` and ``time/remaining``, in seconds.

    The callback logs at the end of each log interval and of each epoch. ``time/elapsed`` is the time inside
    ``fit``, over all resumes. ``time/remaining`` is an estimate of the time until ``max_duration``, including
    the evaluations that are still to come. It is not logged while it is unknown: without ``max_duration``, or
    in the first epoch over a loader without a length if ``max_duration`` is in epochs.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", log_every="1st", callbacks=[TimeRemaining()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history["time/remaining"][0] > 0, result.history["time/remaining"][-1]
        (True, 0.0)
    """

    ranks = "zero"
    writes = ("time/*",)

    def __init__(self) -> None:
        super().__init__()
        self._reset()

    def _reset(self) -> None:
        """Reset the state of a run."""
        self._evals = Aside()
        self._evaluated_at = -1
        """Step of the last evaluation."""
        self._epoch: int | None = None
        """The current epoch."""
        self._unit = ""
        self._first = self._last = Mark(0.0, 0.0)
        """First and last mark, between which the pace is measured."""
        self._pace: float | None = None
        self._went_on = False
        """True if the run was resumed when this session started."""
        self._is_first_interval = True

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._reset()

    def on_train_start(self, run: Run) -> None:
        self.on_setup(run)
        batches = length(run, "train", run.loaders.get("train"))
        if batches is not None and 0 < run.clock.batch_in_epoch < batches:  # The run resumes inside an epoch.
            self._epoch = run.clock.epoch
        if run.max_duration is not None:
            self._start(run, run.max_duration)

    def _start(self, run: Run, end: Duration) -> None:
        """Start to measure the pace in the unit of ``max_duration``."""
        self._unit, self._is_first_interval, self._pace = end.unit, True, None
        self._first = self._last = self._mark(run, end.unit)
        self._went_on = self._first.position > 0

    def on_train_epoch_start(self, run: Run) -> None:
        self._epoch = run.clock.epoch

    def on_train_epoch_end(self, run: Run) -> None:
        if self._unit == "ep":  # For a loader without a length, the position is known only here.
            self._measure(self._mark(run, "ep"))

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._evals.around(run)
        self._evaluated_at = run.clock.step

    def report(self, run: Run) -> None:
        """Log a row."""
        left = None if run.max_duration is None else self._left(run, run.max_duration)
        run.log({"time/elapsed": run.clock.seconds} | ({} if left is None else {"time/remaining": left}), reduce="last")

    # -- the estimate --------------------------------------------------------------------------

    def _left(self, run: Run, end: Duration) -> float | None:
        """Return the remaining seconds, or ``None`` if they are not known."""
        if self._unit != end.unit:  # The callback was added during the run, or max_duration has changed.
            self._start(run, end)
        now = self._mark(run, end.unit)
        missing = max(0.0, end.value - now.position)
        if end.unit == "s":
            return missing
        self._measure(now)
        if self._pace is None:
            return None
        # Inside an epoch over a loader without a length, the position is constant while time passes.
        training = max(0.0, missing * self._pace - (now.seconds - self._last.seconds))
        evaluations = self._evaluations_left(run, end, now.position)
        if evaluations and self._evals.count:
            return training + evaluations * self._evals.seconds / self._evals.count
        if evaluations and self._went_on:
            return missing * run.clock.seconds / now.position
        return training

    def _measure(self, now: Mark) -> None:
        """Update the seconds per unit if the position has changed."""
        if now.position <= self._last.position:
            return
        self._pace = (now.seconds - self._first.seconds) / (now.position - self._first.position)
        self._last = now
        if self._is_first_interval:  # Workers start in it, so it counts only until there is a second interval.
            self._is_first_interval, self._first = False, now

    def _evaluations_left(self, run: Run, end: Duration, position: float) -> int:
        """Return the number of evaluations until the end."""
        every = run.eval_every
        if every is None or "val" not in run.loaders:
            return 0
        every = every.of(end)
        apart = float(every.value)
        if not same_scale(every.unit, end.unit):  # Convert by the ratio of the two units so far.
            done = self._position(run, every.unit)
            if not done:
                return 0
            apart *= position / done
        reached = position / apart
        made = math.floor(reached + NEARLY) if self._evaluated_at == run.clock.step else math.ceil(reached - NEARLY) - 1
        return max(0, math.ceil(end.value / apart - NEARLY) - max(0, made))

    def _mark(self, run: Run, unit: str) -> Mark:
        """Return the current progress."""
        return Mark(run.clock.seconds - self._evals.seconds, self._position(run, unit))

    def _position(self, run: Run, unit: str) -> float:
        """Return the progress in a unit. Epochs include the fraction of the current epoch."""
        clock = run.clock
        batches = length(run, "train", run.loaders.get("train")) if unit == "ep" else None
        if not batches or self._epoch != clock.epoch:
            return clock.elapsed(unit)
        return clock.epoch + min(1.0, clock.batch_in_epoch / batches)
