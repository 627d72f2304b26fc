"""Progress, speed and remaining time of training, evaluations and predictions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline.callbacks._text import format_count, format_speed, format_time
from hookline.callbacks.watch.progress.display import Bar

if TYPE_CHECKING:
    from hookline.progress import Clock, Duration, EvalClock
    from hookline.run import Run

WINDOW, RECENT = 30.0, 0.25
"""Limits of the window of a speed: seconds, and fraction of the time so far.

The fraction limits the effect of a slow start.
"""
CLOSEST = 0.05
"""Marks that are closer in seconds are merged, because epochs may be as short as a step."""


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
    """Training: the epoch and its steps, or one bar in the unit of ``max_duration``."""

    def __init__(self, run: Run, now: float) -> None:
        self._began = now
        self._aside = 0.0  # Seconds in evaluations, in predictions and between epochs.
        self._edge: tuple[float, float] | None = None  # Time of the end of the epoch, and ``_aside`` then.
        self._pauses = 0  # Number of excluded phases.
        self._cold: tuple[float, float, int] | None = None  # ``_aside``, position and ``_pauses`` after the first.
        self._window = Window()
        self._accumulate = run.accumulate
        self.start_epoch(run, now)
        self._begun = False
        self._first = self._position(run.clock, run.max_duration)

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
            self._aside, self._edge = aside + (now - began), None
            self._pauses += 1
        self.epoch = run.clock.epoch + 1
        self._batches = length(run, "train", run.loaders.get("train"))
        self._begun = True

    def set_aside(self, seconds: float) -> None:
        """Exclude seconds of an evaluation or prediction from the speed of training."""
        self._aside += seconds
        self._pauses += 1

    def mark(self, run: Run, now: float) -> None:
        """Record the progress before it is shown."""
        if self._edge is not None:
            return
        clock, self._begun = run.clock, True
        position = self._position(clock, run.max_duration)
        if self._pauses and self._cold is None:
            self._cold = (self._aside, position, self._pauses)
        self._window.add(Mark(now - self._began - self._aside, position, clock.step, clock.sample))

    def show(self, run: Run, now: float) -> tuple[tuple[Bar, ...], str]:
        """Return the bars, and the counts next to them."""
        clock, end = run.clock, run.max_duration
        left, epoch = self._seconds_left(clock, end, now), f"epoch {self.epoch}"
        if end is None:
            return (self._step_bar(clock, left),), epoch
        if end.unit == "ep" and end.value == 1:  # Two bars would show the same.
            return (self._step_bar(clock, left),), f"{epoch}/1"
        done, total = self._position(clock, end), end.value
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

    def _position(self, clock: Clock, end: Duration | None) -> float:
        """Return the progress in the unit of ``max_duration``.

        Epochs include the fraction of the current epoch.
        """
        if end is not None and end.unit != "ep":
            return clock.elapsed(end.unit)
        if clock.epoch >= self.epoch or not self._batches:
            return clock.epoch
        return clock.epoch + min(1.0, self._in_epoch(clock)[0] / self._batches)

    def _seconds_left(self, clock: Clock, end: Duration | None, now: float) -> float | None:
        """Return the remaining seconds, or ``None``.

        The estimate uses the current speed, and the time per unit that evaluations and the gaps between epochs
        took so far.
        """
        if end is None:
            return None
        position = self._position(clock, end)
        missing, made = max(0.0, end.value - position), position - self._first
        if end.unit == "s" or not missing:
            return missing
        if made <= 0:
            return None
        if end.unit == "ep" and not self._batches:  # The position changes only once per epoch.
            return missing * (now - self._began) / made
        pace = self._window.per_second("position")
        return None if pace is None else missing / pace + missing * self._aside_of_one(position, made)

    def _aside_of_one(self, position: float, made: float) -> float:
        """Return the excluded seconds per unit.

        The slow first evaluation counts only until there is a second.
        """
        aside, first, pauses = self._cold or (0.0, 0.0, 0)
        if self._cold is not None and self._pauses > pauses and position > first:
            return (self._aside - aside) / (position - first)
        return self._aside / made


class LoaderTrack:
    """One evaluation over all of its loaders, or one prediction. The speed is over all loaders."""

    def __init__(self, run: Run, now: float) -> None:
        self._clock: EvalClock = run.clock.eval
        self._total = total_length(run, run.stage, run.loaders.get(run.stage))
        self.began = now
        self.name: str = run.stage

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
