"""The agenda: at which step something may be due, so that all other steps need not ask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookline.events.cost import Sampler
from hookline.loop.metrics.series import FOLD
from hookline.loop.saving.verification import AtSteps
from hookline.progress import Clock, Duration, Schedule
from hookline.progress.duration import PASSES, same_scale


class Agenda:
    """Intervals, evaluations, the end, and the sampling of costs. ``wake`` is the next step to look at."""

    __slots__ = (
        "_clock",
        "_due",
        "_ended",
        "_evals",
        "_logs",
        "_looked",
        "_pick",
        "_sampler",
        "finished",
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
        self._ended = 0.0  # when the last interval has, in the unit of `log_every`
        self.saves: list[Schedule | AtSteps] = []
        """When checkpoints are due."""
        self.max_duration = max_duration
        self._due: float = 0
        self.wake: float = 0
        self.finished = False
        """Whether ``max_duration`` is reached."""
        self.sampling = False
        """Whether the step that begins now is one of those whose hooks are timed."""

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Look at no step inside the block."""
        earlier, self.wake = self.wake, math.inf
        try:
            yield
        finally:
            self.wake = earlier

    def look_now(self) -> None:
        """Look at the end of this step whether anything is due."""
        self.wake = 0

    def plan(self, max_duration: Duration | None) -> None:
        """Training begins, or a hook has changed how long it is: shares of it are other intervals now."""
        self.max_duration = max_duration
        for schedule in (self._logs, self._evals, *self.saves):
            if isinstance(schedule, Schedule):
                schedule.replan(max_duration, self._clock)

    def replan(self, max_duration: Duration | None) -> None:
        """Plan again if a hook has changed how long the training is."""
        if self.max_duration != max_duration:
            self.plan(max_duration)
            self.look()

    @property
    def has_parts(self) -> bool:
        """Whether something is due at parts of an epoch."""
        schedules = (self._logs, self._evals, *self.saves)
        return any(isinstance(s, Schedule) and s.every.unit == PASSES for s in schedules)

    @property
    def has_evaluations(self) -> bool:
        return self._evals is not None

    def interval_due(self) -> bool:
        """Whether an interval of metrics ends here. One that has just begun, with an epoch, goes on to the next."""
        return _take(self._logs, self._clock) and not self.interval_is_short

    @property
    def interval_is_short(self) -> bool:
        """Whether it is less than half of one: too little for a mean that is compared with others."""
        logs = self._logs
        return logs is not None and self._clock.elapsed(logs.every.unit) - self._ended < logs.every.value / 2

    def interval_ended(self) -> None:
        if self._logs is not None:
            self._ended = self._clock.elapsed(self._logs.every.unit)

    def eval_due(self) -> bool:
        """Whether an evaluation is due here; it is then counted as made."""
        return _take(self._evals, self._clock)

    def look(self) -> None:
        """A step or an epoch has ended, or training begins: is it over, and when to look again."""
        clock = self._clock
        if self._sampler.needed:
            self._sampler.see(max(0, clock.step - self._looked))
        self._looked = clock.step
        self._sample(clock.step)
        self.finished = self.max_duration is not None and clock.reached(self.max_duration)
        schedules = [schedule for schedule in (self._logs, self._evals, *self.saves) if schedule is not None]
        self._due = min([self._end(), clock.step + FOLD // 2, *(s.next_step(clock) for s in schedules)])
        self._wake_for_sample()

    def _wake_for_sample(self) -> None:
        self.wake = min(self._due, self._pick + self.sampling) if self._sampler.needed else self._due

    def take_sample(self) -> bool:
        """Whether nothing is due at this step but to begin or to end the timing of hooks; that is done then."""
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
        return {**schedules, "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the clock's step, with what each schedule has fired last."""
        for name, schedule in (("logs", self._logs), ("evals", self._evals)):
            if schedule is not None and state[name] is not None:
                schedule.load_state_dict(state[name])
        logs, then = self._logs, state["logs"]
        if logs is not None:  # in another unit it is not known when that was
            same = then is not None and same_scale(Duration.from_state(then["every"]).unit, logs.every.unit)
            self._ended = state.get("ended", 0) if same else self._clock.elapsed(logs.every.unit)
        for save in self.saves:
            save.fired(self._clock)
        self._looked = self._clock.step
        self._pick = self._sampler.next_after(self._clock.step - 1)

    def went_back(self, then: Mapping[str, Any]) -> None:
        """Steps were taken back: what was due at one of them is due again. Samples, epochs and time went on."""
        for name, schedule in (("logs", self._logs), ("evals", self._evals)):
            if schedule is not None and schedule.every.unit == "st" and then[name] is not None:
                schedule.load_state_dict(then[name])
                self._ended = then.get("ended", 0) if name == "logs" else self._ended
        for save in self.saves:
            if isinstance(save, AtSteps) or save.every.unit == "st":
                save.fired(self._clock)
        self._looked = self._clock.step
        self._pick = self._sampler.next_after(self._clock.step - 1)
        self.sampling = False
        self.look_now()

    def _sample(self, step: int) -> None:
        """One step in 64 goes through timed hooks, at a pseudo-random place in each group of 64."""
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
    if schedule is None or not schedule.due(clock):
        return False
    schedule.fired(clock)
    return True
