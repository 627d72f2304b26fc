"""``TimeRemaining``: how long a run has taken, and how long it will."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from hookline.callbacks.watch.interval import Aside, Interval
from hookline.callbacks.watch.tracks import length
from hookline.events import Callback
from hookline.progress.duration import same_scale

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

NEARLY = 1e-9
"""Counts that were computed are whole up to this."""


class Mark(NamedTuple):
    """How far training was at one moment."""

    seconds: float
    """Without evaluations."""
    position: float
    """In the unit of ``max_duration``."""


class TimeRemaining(Callback):
    """Logs ``time/elapsed`` and ``time/remaining``, in seconds, at each interval and at the end of each epoch.

    ``time/elapsed`` is the time inside ``fit``, over all resumes. ``time/remaining`` is what is left until
    ``max_duration``, whatever its unit, at the pace of this session's steps, without its first interval as soon as
    there is a second; plus the evaluations that are still to come, each as long as those that were made. Before the
    first evaluation is over it is not known how long one takes: a run that goes on then takes the pace of the whole
    run so far, a new one counts none.

    There is no ``time/remaining`` while it is not known: without ``max_duration``, and in the first epoch over a loader
    without a length, when ``max_duration`` is in epochs.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="2ep", log_every="1st", callbacks=[TimeRemaining()], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> result.history["time/remaining"][0] > 0, result.history["time/remaining"][-1]
    (True, 0.0)
    """

    optional = True
    ranks = "zero"
    writes = ("time/*",)
    state = ("_interval",)
    shares_state = True

    def __init__(self) -> None:
        self._interval = Interval()
        self._forget()

    def _forget(self) -> None:
        self._evals = Aside()
        self._evaluated_at = -1
        """The step of the last evaluation."""
        self._epoch: int | None = None
        """The one that is under way."""
        self._unit = ""
        self._first = self._last = Mark(0.0, 0.0)
        """The pace is measured from the first mark to the last."""
        self._pace: float | None = None
        self._went_on = False
        """The run was under way when this session began."""
        self._is_first_interval = True

    def on_setup(self, run: Run) -> None:
        self._interval.begin(run)
        self._forget()

    def on_train_start(self, run: Run) -> None:
        self.on_setup(run)
        batches = length(run, "train", run.loaders.get("train"))
        if batches is not None and 0 < run.clock.batch_in_epoch < batches:  # it goes on inside an epoch
            self._epoch = run.clock.epoch
        if run.max_duration is not None:
            self._start(run, run.max_duration)

    def _start(self, run: Run, end: Duration) -> None:
        self._unit, self._is_first_interval, self._pace = end.unit, True, None
        self._first = self._last = self._mark(run, end.unit)
        self._went_on = self._first.position > 0

    def on_train_epoch_start(self, run: Run) -> None:
        self._epoch = run.clock.epoch

    def on_metrics_ready(self, run: Run) -> None:
        self._report(run)

    def on_train_epoch_end(self, run: Run) -> None:
        if self._unit == "ep":  # of a loader without a length this is the only moment at which the position is known
            self._measure(self._mark(run, "ep"))

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._evals.around(run)
        self._evaluated_at = run.clock.step

    def on_epoch_end(self, run: Run) -> None:
        self._report(run)

    def _report(self, run: Run) -> None:
        if not self._interval.is_over(run):
            return
        left = None if run.max_duration is None else self._left(run, run.max_duration)
        run.log({"time/elapsed": run.clock.seconds} | ({} if left is None else {"time/remaining": left}), reduce="last")

    # -- the estimate --------------------------------------------------------------------------

    def _left(self, run: Run, end: Duration) -> float | None:
        if self._unit != end.unit:  # it joined a run under way, or somebody has just changed max_duration
            self._start(run, end)
        now = self._mark(run, end.unit)
        missing = max(0.0, end.value - now.position)
        if end.unit == "s":
            return missing
        self._measure(now)
        if self._pace is None:
            return None
        # Inside an epoch over a loader without a length, the position stands still and time goes on.
        training = max(0.0, missing * self._pace - (now.seconds - self._last.seconds))
        evaluations = self._evaluations_left(run, end, now.position)
        if evaluations and self._evals.count:
            return training + evaluations * self._evals.seconds / self._evals.count
        if evaluations and self._went_on:
            return missing * run.clock.seconds / now.position
        return training

    def _measure(self, now: Mark) -> None:
        """Seconds for one of the unit, if anything has moved."""
        if now.position <= self._last.position:
            return
        self._pace = (now.seconds - self._first.seconds) / (now.position - self._first.position)
        self._last = now
        if self._is_first_interval:  # it is slow, because workers start: it counts only while it is all there is
            self._is_first_interval, self._first = False, now

    def _evaluations_left(self, run: Run, end: Duration, position: float) -> int:
        every = run.eval_every
        if every is None or "val" not in run.loaders:
            return 0
        every = every.of(end)
        apart = float(every.value)
        if not same_scale(every.unit, end.unit):  # scale by the ratio of the two units so far
            done = self._position(run, every.unit)
            if not done:
                return 0
            apart *= position / done
        reached = position / apart
        made = math.floor(reached + NEARLY) if self._evaluated_at == run.clock.step else math.ceil(reached - NEARLY) - 1
        return max(0, math.ceil(end.value / apart - NEARLY) - max(0, made))

    def _mark(self, run: Run, unit: str) -> Mark:
        return Mark(run.clock.seconds - self._evals.seconds, self._position(run, unit))

    def _position(self, run: Run, unit: str) -> float:
        """How far it is; for epochs with the part of the one that is under way."""
        clock = run.clock
        batches = length(run, "train", run.loaders.get("train")) if unit == "ep" else None
        if not batches or self._epoch != clock.epoch:
            return clock.elapsed(unit)
        return clock.epoch + min(1.0, clock.batch_in_epoch / batches)
