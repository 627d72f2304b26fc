"""``TimeLimit``: stop training when the time is used up, early enough to save."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from hookline.errors import ArgumentError, DurationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

Time = str | timedelta | Duration


class TimeLimit(Callback):
    """Stop training after a duration or at a point in time, early enough to save.

    The callback checks the time after each step. An evaluation that is already running is finished.

    Args:
        duration: Time limit: ``"1h30m"``, ``"2d"`` or a ``timedelta``. ``None``: only ``until`` counts.
        count: ``"run"``: the training time of the whole run over all resumes (``run.clock.seconds``); the run is then
            finished. ``"process"``: the time since this ``fit`` started, as for a cluster job; the run is then
            interrupted as by Ctrl-C, and ``resume="auto"`` continues it with the full time again.
        until: ``datetime`` with a time zone at which the run is interrupted in the same way. With ``duration``, the
            earlier limit counts. ``None``: only ``duration`` counts.
        margin: Time to reserve before either limit for the longest step, the last evaluation and the save. ``None``:
            none.

    Raises:
        ArgumentError: If an argument is invalid, or both ``duration`` and ``until`` are missing.
        SetupError: If ``until`` less ``margin`` has already passed when ``fit`` starts.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1000000ep", callbacks=[TimeLimit("0.05s")], folder=False)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> result.stopped_by, result.stop_reason.partition(" is")[0]
        ('TimeLimit', 'the time limit of 0.05s')
    """

    writes = ()  # The callback logs no metric.

    def __init__(
        self,
        duration: Time | None = None,
        *,
        count: Literal["run", "process"] = "run",
        until: datetime | None = None,
        margin: Time | None = None,
    ) -> None:
        if duration is None and until is None:
            raise ArgumentError("TimeLimit(): has no limit. Write for example duration='2h', or until=….")
        if until is not None and until.tzinfo is None:
            raise ArgumentError(
                f"TimeLimit(until={until!r}): has no time zone. Give for example "
                f"datetime(2030, 1, 31, 12, 0).astimezone()."
            )
        self.duration = None if duration is None else _time("duration", duration)
        self.margin = None if margin is None else _time("margin", margin)
        if self.duration is not None and self.margin is not None and self.margin >= self.duration:
            raise ArgumentError(
                f"TimeLimit(margin={str(self.margin)!r}): leaves no time of the {self.duration} for training."
            )
        self.count = count
        self.until = until
        self._limit = self._end = float("inf")

    def on_setup(self, run: Run) -> None:
        if run.is_training_run and self.until is not None and self._seconds_to(self.until) <= 0:
            raise SetupError(f"TimeLimit(until={self.until.isoformat()!r}): there is no time left; give a later moment")

    def on_fit_start(self, run: Run) -> None:
        """Compute the limits on the run's clock, which has been restored by now."""
        now = run.clock.elapsed("s")
        self._limit = self._end = float("inf")
        if self.duration is not None:
            self._limit = self.duration.value - self._margin + (now if self.count == "process" else 0)
        if self.until is not None:
            self._end = now + self._seconds_to(self.until)

    def on_train_step_end(self, run: Run) -> None:
        seconds = run.clock.elapsed("s")
        if seconds >= self._limit:
            self._stop(run, f"the time limit of {self.duration}", finished=self.count == "run")
        elif seconds >= self._end and self.until is not None:
            self._stop(run, f"the time limit, {self.until.isoformat(sep=' ', timespec='seconds')},", finished=False)

    def on_step_skipped(self, run: Run) -> None:
        self.on_train_step_end(run)

    @property
    def _margin(self) -> float:
        """Margin in seconds."""
        return 0.0 if self.margin is None else self.margin.value

    def _seconds_to(self, until: datetime) -> float:
        """Return the seconds until this time, less the margin."""
        return (until - datetime.now(until.tzinfo)).total_seconds() - self._margin

    def _stop(self, run: Run, limit: str, *, finished: bool) -> None:
        """Stop the run, or pause it so that it can resume."""
        margin = "" if self.margin is None else f" (less {self.margin} to end and save)"
        reason = f"{limit} is reached{margin}"
        if finished:
            run.stop(reason)
            return
        run.pause(reason)


def _time(name: str, given: Time) -> Duration:
    """Return the argument as a duration in seconds."""
    if isinstance(given, timedelta):
        if given <= timedelta(0):
            raise ArgumentError(f"TimeLimit({name}={given!r}): must be > 0.")
        return Duration(given.total_seconds(), "s")
    try:
        duration = Duration.parse(given)
    except DurationError as error:
        raise ArgumentError(f"TimeLimit({name}={given!r}): {error}") from None
    if duration.unit != "s":
        raise ArgumentError(f"TimeLimit({name}={given!r}): must be a time, such as '90s', '30m', '1h30m' or '2d'.")
    return duration
