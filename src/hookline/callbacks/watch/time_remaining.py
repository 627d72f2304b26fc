"""``TimeRemaining``: elapsed and remaining time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookline.callbacks.watch._interval import IntervalMonitor
from hookline.callbacks.watch.progress.tracks import TrainTrack

if TYPE_CHECKING:
    from hookline.run import Run


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
        self._track: TrainTrack | None = None

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._track = None

    def on_train_start(self, run: Run) -> None:
        super().on_setup(run)
        self._track = TrainTrack(run, run.clock.seconds, from_start=True)

    def on_train_epoch_start(self, run: Run) -> None:
        if self._track is not None:
            self._track.start_epoch(run, run.clock.seconds)

    def on_train_epoch_end(self, run: Run) -> None:
        if self._track is not None:
            self._track.end_epoch(run, run.clock.seconds)

    def around_eval(self, run: Run) -> Iterator[None]:
        began = run.clock.seconds
        yield
        if self._track is not None:
            self._track.set_aside(run.clock.seconds - began, run.clock.step)

    def report(self, run: Run) -> None:
        """Log a row."""
        now = run.clock.seconds
        if self._track is None:  # The callback was added during the run.
            self._track = TrainTrack(run, now)
        self._track.mark(run, now)
        left = self._track.seconds_left(run, now)
        run.log({"time/elapsed": now} | ({} if left is None else {"time/remaining": left}), reduce="last")
