"""``Agenda``: the next step at which something may be due. The loop skips all other steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookline.events.cost import Sampler
from hookline.loop.evaluation.eval_loader import LoaderSchedules
from hookline.loop.metrics.series import FOLD
from hookline.loop.saving.slots import SaveSchedule
from hookline.progress import Clock, Duration, Schedule
from hookline.progress.duration import PASSES, same_scale


class Agenda:
    """Schedules of log intervals, evaluations, checkpoints, timed steps and the end of training.

    ``wake`` is the next step at which the loop must check what is due.

    Args:
        clock: The clock of the run.
        sampler: Chooses the steps whose hooks are timed.
        log_every: Length of a log interval. ``None``: only epochs end an interval.
        eval_every: Interval between two evaluations. ``None``: never.
        max_duration: How long to train. ``None``: until the loop is stopped.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_ended",
        "_evals",
        "_logs",
        "_looked",
        "_pick",
        "_sampler",
        "_steps",
        "is_duration_reached",
        "loaders",
        "max_duration",
        "sampling",
        "saves",
        "wake",
    )

    def __init__(
        self,
        clock: Clock,
        sampler: Sampler,
        log_every: Duration | None,
        eval_every: Duration | None,
        max_duration: Duration | None,
    ) -> None:
        self._clock = clock
        self._sampler = sampler
        self._pick = sampler.next_after(0)
        self._looked = clock.step
        self._logs = None if log_every is None else Schedule.of(log_every, max_duration)
        self._evals = None if eval_every is None else Schedule.of(eval_every, max_duration)
        self._ended = 0.0  # When the last log interval ended, in the unit of `log_every`.
        self.saves: list[SaveSchedule] = []
        """The schedules of the checkpoints, and the end of a replay."""
        self.loaders = LoaderSchedules()
        """When evaluation loaders with their own interval are used."""
        self.max_duration = max_duration
        self._steps: tuple[int, ...] = ()
        self._due: float = 0
        self.wake: float = 0
        self.is_duration_reached = False
        """True if ``max_duration`` is reached."""
        self.sampling = False
        """True if the hooks of the step that begins now are timed."""

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Suspend all checks inside the block."""
        earlier, self.wake = self.wake, math.inf
        try:
            yield
        finally:
            self.wake = earlier

    def wake_now(self) -> None:
        """Check at the end of this step whether anything is due."""
        self.wake = 0

    def look_at(self, steps: Iterable[int]) -> None:
        """Also check what is due at these steps."""
        self._steps = tuple(steps)
        self.wake_now()

    def plan(self, max_duration: Duration | None) -> None:
        """Set how long the run trains, and adapt the intervals that are fractions of it."""
        self.max_duration = max_duration
        for schedule in (self._logs, self._evals, *self.saves):
            if isinstance(schedule, Schedule):
                schedule.replan(max_duration, self._clock)

    def check(self, max_duration: Duration | None) -> None:
        """Raise ``DurationError`` if an interval is a fraction of ``max_duration`` and cannot be one of this length."""
        for schedule in (self._logs, self._evals, *self.saves):
            if isinstance(schedule, Schedule):
                schedule.interval(max_duration)

    def replan(self, max_duration: Duration | None) -> None:
        """Plan again if a hook has changed ``max_duration``."""
        if self.max_duration != max_duration:
            self.plan(max_duration)
            self.look()

    @property
    def has_epoch_fractions(self) -> bool:
        """True if something is due at fractions of an epoch."""
        schedules = (self._logs, self._evals, *self.saves)
        return any(isinstance(s, Schedule) and s.every.unit == PASSES for s in schedules)

    @property
    def has_evaluations(self) -> bool:
        return self._evals is not None

    def take_interval(self) -> bool:
        """Take the end of a log interval that is due. Return whether the interval ends here.

        The end of an epoch also ends an interval. If the current interval has just begun, at such an end, it continues
        to the next multiple of ``log_every``.
        """
        return _take(self._logs, self._clock) and not self.interval_is_short

    @property
    def interval_is_short(self) -> bool:
        """True if the current log interval is shorter than half of ``log_every``.

        Its mean would be too noisy next to the means of full intervals.
        """
        logs = self._logs
        return logs is not None and self._clock.elapsed(logs.every.unit) - self._ended < logs.every.value / 2

    def interval_ended(self) -> None:
        """Start the next log interval at the current position of the clock."""
        if self._logs is not None:
            self._ended = self._clock.elapsed(self._logs.every.unit)

    def take_evaluation(self) -> bool:
        """Take the evaluation that is due. Return whether one was due."""
        return _take(self._evals, self._clock)

    def look(self) -> None:
        """Check whether training is over, and set the next step at which something may be due.

        The engine calls this method when training begins, and after each step or epoch at which something was due.
        """
        clock = self._clock
        if self._sampler.needed:
            self._sampler.see(max(0, clock.step - self._looked))
        self._looked = clock.step
        self._sample(clock.step)
        self.is_duration_reached = self.max_duration is not None and clock.reached(self.max_duration)
        schedules = [schedule for schedule in (self._logs, self._evals, *self.saves) if schedule is not None]
        steps = [step for step in self._steps if step > clock.step]
        self._due = min([self._end(), clock.step + FOLD // 2, *steps, *(s.next_step(clock) for s in schedules)])
        self._wake_for_sample()

    def _wake_for_sample(self) -> None:
        self.wake = min(self._due, self._pick + self.sampling) if self._sampler.needed else self._due

    def take_sample(self) -> bool:
        """Start or end the timing of hooks if nothing else is due. Return whether this was all.

        If it returns False, the caller must check everything and call ``look``.
        """
        step = self._clock.step
        if not self.wake or step >= self._due:
            return False
        self._sampler.see(step - self._looked)
        self._looked = step
        self._sample(step)
        self._wake_for_sample()
        return True

    def state_dict(self) -> dict[str, Any]:
        schedules = {name: s and s.state_dict() for name, s in (("logs", self._logs), ("evals", self._evals))}
        return {**schedules, "ended": self._ended, "loaders": self.loaders.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the step of the clock, with the last call of each schedule."""
        for name, schedule in (("logs", self._logs), ("evals", self._evals)):
            if schedule is not None and state[name] is not None:
                schedule.load_state_dict(state[name])
        self.loaders.load_state_dict(state.get("loaders", {}))  # Older checkpoints lack it.
        logs, then = self._logs, state["logs"]
        if logs is not None:
            # If `log_every` had another unit, the start of the interval is not known. It then starts now.
            same = then is not None and same_scale(Duration.from_state(then["every"]).unit, logs.every.unit)
            self._ended = state.get("ended", 0) if same else self._clock.elapsed(logs.every.unit)
        for save in self.saves:
            save.fired(self._clock)
        self._looked = self._clock.step
        self._pick = self._sampler.next_after(self._clock.step - 1)

    def went_back(self, then: Mapping[str, Any]) -> None:
        """Adapt to a rollback: actions that were due at the undone steps are due again.

        Only schedules in steps go back. Samples, epochs and time do not.

        Args:
            then: The state of this agenda in the snapshot.
        """
        for name, schedule in (("logs", self._logs), ("evals", self._evals)):
            if schedule is not None and schedule.every.unit == "st" and then[name] is not None:
                schedule.load_state_dict(then[name])
                self._ended = then.get("ended", 0) if name == "logs" else self._ended
        self.loaders.went_back(then["loaders"])
        for save in self.saves:
            if save.every is None or save.every.unit == "st":
                save.fired(self._clock)
        self._looked = self._clock.step
        self._pick = self._sampler.next_after(self._clock.step - 1)
        self.sampling = False
        self.wake_now()

    def _sample(self, step: int) -> None:
        """Start or end the timing of hooks. One pseudo-random step of each group of 64 is timed."""
        if self.sampling and step > self._pick:
            self._sampler.count_sample()
            self.sampling = False
        if step > self._pick:
            self._pick = self._sampler.next_after(step - 1)
        self.sampling = step == self._pick and self._sampler.needed

    def _end(self) -> float:
        if self.max_duration is None or self.max_duration.unit == "ep":
            return math.inf
        return self.max_duration.value if self.max_duration.unit == "st" else self._clock.step + 1


def _take(schedule: Schedule | None, clock: Clock) -> bool:
    """Mark the action as done if it is due. Return whether it was due."""
    if schedule is None or not schedule.due(clock):
        return False
    schedule.fired(clock)
    return True
