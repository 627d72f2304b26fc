"""Progress, speed and remaining time of training, evaluations and predictions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline.callbacks._text import format_count, format_speed, format_time
from hookline.callbacks.watch.progress.display import Bar
from hookline.progress.duration import same_scale

if TYPE_CHECKING:
    from hookline.progress import Clock, Duration, EvalClock
    from hookline.run import Run

WINDOW, RECENT = 30.0, 0.25
"""Limits of the window of a speed: seconds, and fraction of the time so far.

The fraction limits the effect of a slow start.
"""
CLOSEST = 0.05
"""Marks that are closer in seconds are merged, because epochs may be as short as a step."""


TOLERANCE = 1e-9
"""Tolerance for computed counts that should be integers."""


class Mark(NamedTuple):
    """Counts at one time."""

    seconds: float
    position: float
    """Progress in the unit of ``max_duration``."""
    step: int
    sample: int


class Window:
    """Marks of the last seconds, for the current speed.

    The first mark comes after the first step, so that a slow start does not count. The next steps are also
    slow, because workers start and caches are cold: they count only until there are later ones.
    """

    __slots__ = ("_is_cold", "_marks")

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._is_cold = True

    def add(self, mark: Mark) -> None:
        """Add a mark and drop old ones."""
        marks = self._marks
        if len(marks) > 2 and mark.seconds - marks[-2].seconds < CLOSEST:
            marks.pop()
        marks.append(mark)
        if self._is_cold and len(marks) > 2 and mark.seconds - marks[1].seconds >= CLOSEST:
            self._is_cold = False
            marks.popleft()
        span = min(WINDOW, RECENT * mark.seconds)
        while len(marks) > 2 and mark.seconds - marks[1].seconds >= span:
            marks.popleft()

    def per_second(self, field: str) -> float | None:
        """Return a speed, or ``None`` if it is not known yet.

        ``field`` is ``"position"``, ``"step"`` or ``"sample"``.
        """
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        seconds = last.seconds - first.seconds
        done = getattr(last, field) - getattr(first, field)
        return float(done / seconds) if seconds > 0 and done > 0 else None


class TrainTrack:
    """Progress, speed and remaining time of training.

    ``now`` is a time in seconds on any clock, always the same one.

    Args:
        run: The run.
        now: Time at which training starts.
        from_start: Count the first step in the speed. It is slow, but known at once.
    """

    def __init__(self, run: Run, now: float, *, from_start: bool = False) -> None:
        self._began = now
        self._aside = 0.0  # Seconds in evaluations, in predictions and between epochs.
        self._edge: tuple[float, float] | None = None  # Time of the end of the epoch, and ``_aside`` then.
        self._gaps: list[tuple[float, float]] = []  # Seconds between two epochs, and the position after them.
        self._evaluations, self._evaluation_seconds, self._evaluated_at = 0, 0.0, -1
        self._accumulate = run.accumulate
        self.start_epoch(run, now)
        self._begun, self._unit = False, ""
        self._restart(run)
        if from_start:
            self._window.add(Mark(0.0, self._first, run.clock.step, run.clock.sample))

    def _restart(self, run: Run) -> None:
        """Start to measure in the unit of ``max_duration``."""
        self._unit = "" if run.max_duration is None else run.max_duration.unit
        self._window = Window()
        self._first = self._position(run.clock, self._unit)
        self._moved = self._first, 0.0
        """Last position that was new, and its time in seconds of training."""

    def end_epoch(self, run: Run, now: float) -> None:
        """Record the end of an epoch. The time until the next epoch does not count in the speed."""
        self.mark(run, now)
        self._edge = (now, self._aside)

    def start_epoch(self, run: Run, now: float) -> None:
        """Record the start and number of an epoch.

        ``clock.epoch`` already counts the epoch during its evaluation.
        """
        if self._edge is not None:
            began, aside = self._edge
            gap = max(0.0, now - began - (self._aside - aside))  # Evaluations in between are counted separately.
            self._aside, self._edge = self._aside + gap, None
            self._gaps.append((gap, self._position(run.clock, self._unit)))
        self.epoch = run.clock.epoch + 1
        self._batches = length(run, "train", run.loaders.get("train"))
        self._begun = True

    def set_aside(self, seconds: float, evaluated_at: int | None = None) -> None:
        """Exclude seconds from the speed of training.

        Args:
            seconds: Length of an evaluation or prediction.
            evaluated_at: Step of an evaluation. ``None``: a prediction.
        """
        self._aside += seconds
        if evaluated_at is not None:
            self._evaluations, self._evaluated_at = self._evaluations + 1, evaluated_at
            self._evaluation_seconds += seconds

    def mark(self, run: Run, now: float) -> None:
        """Record the progress."""
        if self._edge is not None:
            return
        clock, self._begun = run.clock, True
        if run.max_duration is not None and run.max_duration.unit != self._unit:
            self._restart(run)
        position, seconds = self._position(clock, self._unit), now - self._began - self._aside
        if position > self._moved[0]:
            self._moved = position, seconds
        self._window.add(Mark(seconds, position, clock.step, clock.sample))

    def show(self, run: Run, now: float) -> tuple[tuple[Bar, ...], str]:
        """Return the bars, and the counts next to them."""
        clock, end = run.clock, run.max_duration
        left, epoch = self.seconds_left(run, now), f"epoch {self.epoch}"
        if end is None:
            return (self._step_bar(clock, left),), epoch
        if end.unit == "ep" and end.value == 1:  # Two bars would show the same.
            return (self._step_bar(clock, left),), f"{epoch}/1"
        done, total = self._position(clock, end.unit), end.value
        match end.unit:
            case "ep":
                whole = Bar("epoch", f"{self.epoch}/{total}", done, total, seconds_left=left)
                return (whole, self._step_bar(clock)), ""
            case "st":
                return (Bar("step", f"{clock.step}/{total}", done, total, self._speed(), left),), epoch
            case "sp":
                bar = Bar("sample", f"{clock.sample}/{total}", done, total, self._speed("sample", "samples"), left)
            case "tok":
                count = f"{format_count(clock.token)}/{format_count(total)}"
                bar = Bar("token", count, done, total, self._speed("position", "tokens"), left)
            case _:
                bar = Bar("time", f"{format_time(done)}/{format_time(total)}", done, total, self._speed(), left)
        return (bar,), f"{epoch} step {clock.step}"

    def _step_bar(self, clock: Clock, left: float | None = None) -> Bar:
        """Return the bar of the steps in the epoch.

        Its length is in batches, because a skipped step uses data.
        """
        (done, steps), total = self._in_epoch(clock), self._batches
        if total is not None and done > total:  # The loader reported a wrong length.
            total = None
        count = str(steps) if total is None else f"{steps}/{math.ceil(total / self._accumulate)}"
        return Bar("step", count, done, total, self._speed(), left)

    def _speed(self, field: str = "step", unit: str = "it") -> str:
        """Return the speed of the bar. For steps, also the speed in samples."""
        words = format_speed(self._window.per_second(field), unit)
        samples = format_speed(self._window.per_second("sample"), "samples") if field == "step" else ""
        return ", ".join(part for part in (words, samples) if part)

    def _in_epoch(self, clock: Clock) -> tuple[int, int]:
        """Return batches and steps in the epoch.

        Before a second ``fit`` starts its first epoch, the clock still has the previous epoch.
        """
        batches, steps = clock.batch_in_epoch, clock.step_in_epoch
        return (0, 0) if not self._begun and batches == self._batches else (batches, steps)

    def _position(self, clock: Clock, unit: str) -> float:
        """Return the progress in a unit. Epochs include the fraction of the current epoch."""
        if unit and unit != "ep":
            return clock.elapsed(unit)
        if clock.epoch >= self.epoch or not self._batches:
            return clock.epoch
        return clock.epoch + min(1.0, self._in_epoch(clock)[0] / self._batches)

    def seconds_left(self, run: Run, now: float) -> float | None:
        """Return an estimate of the seconds until ``max_duration``, or ``None`` if it is not known.

        The estimate uses the current speed, the evaluations that are still to come, and the time between epochs.
        """
        end, clock = run.max_duration, run.clock
        if end is None:
            return None
        position = self._position(clock, end.unit)
        missing, made = max(0.0, end.value - position), position - self._first
        if end.unit == "s":
            return missing
        if made <= 0:
            return None if missing else 0.0
        if not missing:
            training = 0.0
        elif end.unit == "ep" and not self._batches:  # The position changes only once per epoch.
            moved, seconds = self._moved
            since = now - self._began - self._aside - seconds
            training = max(0.0, missing * seconds / (moved - self._first) - since)
        elif (pace := self._window.per_second("position")) is not None:
            training = missing / pace
        else:
            return None
        evaluations = self._evaluations_left(run, end, position)
        if evaluations and not self._evaluations and self._first > 0:  # The run was resumed.
            return missing * clock.seconds / position
        if evaluations and self._evaluations:
            training += evaluations * self._evaluation_seconds / self._evaluations
        return training + missing * self._gap_of_one(position, made)

    def _evaluations_left(self, run: Run, end: Duration, position: float) -> int:
        """Return the number of evaluations until the end."""
        if run.eval_every is None or "val" not in run.loaders:
            return 0
        every = run.eval_every.of(end)
        apart = float(every.value)
        if not same_scale(every.unit, end.unit):  # Convert by the ratio of the two units so far.
            done = self._position(run.clock, every.unit)
            if not done:
                return 0
            apart *= position / done
        reached = position / apart
        is_made = self._evaluated_at == run.clock.step
        made = math.floor(reached + TOLERANCE) if is_made else math.ceil(reached - TOLERANCE) - 1
        return max(0, math.ceil(end.value / apart - TOLERANCE) - max(0, made))

    def _gap_of_one(self, position: float, made: float) -> float:
        """Return the seconds between epochs per unit. The slow first gap counts only until there is a second."""
        seconds = [gap for gap, _ in self._gaps]
        if len(seconds) > 1 and position > self._gaps[0][1]:
            return sum(seconds[1:]) / (position - self._gaps[0][1])
        return sum(seconds) / made


class LoaderTrack:
    """One evaluation over all of its loaders, or one prediction. The speed is over all loaders."""

    def __init__(self, run: Run, now: float) -> None:
        self._clock: EvalClock = run.clock.eval
        loaders = run.loaders.get(run.stage)
        self.began = now
        self.name: str = run.stage
        if run.stage == "predict":  # Each loader is a prediction.
            self.start_loader(run)
            loaders = loaders.get(run.loader_name) if isinstance(loaders, Mapping) else loaders
        self._total = total_length(run, run.stage, loaders)

    def start_loader(self, run: Run) -> None:
        """Set the name of the bar to that of the loader."""
        self.name = run.stage if run.loader_name is None else f"{run.stage}/{run.loader_name}"

    def show(self) -> Bar:
        """Return the bar."""
        done, total, seconds = self._clock.batch, self._total, self._clock.seconds
        if total is not None and done > total:  # The loader reported a wrong length.
            total = None
        count = str(done) if total is None else f"{done}/{total}"
        if not done or seconds <= 0:
            return Bar(self.name, count, done, total)
        words = (format_speed(done / seconds, "it"), format_speed(self._clock.sample / seconds, "samples"))
        left = None if total is None else (total - done) * seconds / done
        return Bar(self.name, count, done, total, ", ".join(part for part in words if part), left)


def length(run: Run, stage: str, loader: Any) -> int | None:
    """Return the number of batches of a loader on this rank, within the limits of the loop.

    ``None`` if not known.
    """
    try:
        return run.num_batches(stage, loader)
    except Exception:  # An error in the user's __len__ must not disable the bar.
        return None


def total_length(run: Run, stage: str, loaders: Any) -> int | None:
    """Return the number of batches of one loader or a dict of loaders, or ``None`` if not known."""
    named = loaders.values() if isinstance(loaders, Mapping) else [loaders]
    lengths = [length(run, stage, loader) for loader in named]
    known = [found for found in lengths if found is not None]
    return sum(known) if len(known) == len(lengths) else None
