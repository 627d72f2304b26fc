"""``Following``: hooks that follow the progress of a run and update a display."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hookline.callbacks.watch.progress.display import Progress, ProgressDisplay
from hookline.callbacks.watch.progress.styles import Style
from hookline.callbacks.watch.progress.tracks import LoaderTrack, TrainTrack
from hookline.events.monitored import monitored_metrics
from hookline.progress import Duration, Schedule
from hookline.records import Value
from hookline.records.chosen import choose_metrics
from hookline.records.metric import losses_not_finite

if TYPE_CHECKING:
    from hookline.run import Run

Self = TypeVar("Self", bound="Following")

LOSS: Final = "train/loss"
MAX_METRICS: Final[Mapping[str, int]] = {"train/": 2, "val/": 3, "test/": 3}
"""Maximum number of metrics per prefix if the user selects none."""
SHARE: Final = 300
"""A display may take 1/300 of the time. After a slow update, the next one waits longer."""
PART, SLOWEST = 40, 3600.0
"""Limits of ``thin``: the interval grows to 1/40 of the run's time, but not above one hour."""


def closing(hook: Callable[[Self, Run], None]) -> Callable[[Self, Run], None]:
    """Close the display when a hook fails.

    Hookline disables a callback that fails and does not call its ``on_teardown``.
    """

    @wraps(hook)
    def hook_that_closes(self: Self, run: Run) -> None:
        try:
            hook(self, run)
        except BaseException:
            with suppress(Exception):
                self._close()
            raise

    return hook_that_closes


class Following:
    """Follow training, evaluations and predictions, and update a display when it is due.

    Base class of ``ProgressBar`` and ``LogFile``. Between two updates, a step costs one comparison of the time.
    """

    metrics: tuple[str, ...] = ()
    every: Duration | None = None

    def __init__(self) -> None:
        self._clear()

    def _style(self, run: Run) -> Style | None:
        """Return the display of the call that starts, or ``None``."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Drop everything that belongs to one call. Nothing is displayed."""
        self._display: ProgressDisplay | None = None
        self._pace = Pace(math.inf, burst=0)
        self._schedule: Schedule | None = None
        self._due = math.inf
        """Time of the next update. Most steps and batches read only this attribute."""
        self._began = 0.0
        self._train: TrainTrack | None = None
        self._trains = False
        self._loaders: list[LoaderTrack] = []
        self._last_loader: LoaderTrack | None = None
        self._newest = Newest(self.metrics)
        self._note = ""
        self._over = False
        self._epoch_ending = False

    # -- training ------------------------------------------------------------------------------

    @closing
    def on_setup(self, run: Run) -> None:
        self._close()
        self._clear()
        self._due = 0.0  # For a bar that is added during a run, the next step opens the display.

    @closing
    def on_fit_start(self, run: Run) -> None:
        if run.ending is not None:  # The run was finished before this call, so nothing is trained.
            return
        self._train = TrainTrack(run, perf_counter())
        self._show(run)
        if self._display is not None:
            self._due = 0.0  # The first step is shown as well: it works, and its loss is known.

    @closing
    def on_train_start(self, run: Run) -> None:
        self._train, self._trains = TrainTrack(run, perf_counter()), True

    @closing
    def on_train_end(self, run: Run) -> None:
        self._trains = False  # A custom loop may evaluate after training. This is shown at once.

    @closing
    def on_train_epoch_start(self, run: Run) -> None:
        if self._train is not None:
            self._train.start_epoch(run, perf_counter())

    def on_train_step_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_training(run)

    @closing
    def on_metrics_ready(self, run: Run) -> None:
        if self._train is not None and self._due != math.inf:
            # A plain log is updated rarely. The marks in between keep its speed recent.
            self._train.mark(run, perf_counter())
        self._read(run)

    @closing
    def on_train_epoch_end(self, run: Run) -> None:
        self._epoch_ending = True
        if self._train is not None:
            self._train.end_epoch(run, perf_counter())

    @closing
    def on_epoch_end(self, run: Run) -> None:
        self._epoch_ending = False
        self._read(run)
        self._show_edge(run)

    @closing
    def on_stop(self, run: Run) -> None:
        self._note = f"stopped: {' '.join(run.stop_reason.split())}"

    @closing
    def _tick_of_training(self, run: Run) -> None:
        """Update the display after a training step, unless ``every`` says otherwise."""
        now = perf_counter()
        if self._train is None:
            self._train = TrainTrack(run, now)
        if self._schedule is None or (self._schedule.every.unit != "ep" and self._fires(self._schedule, run)):
            self._train.mark(run, now)
            self._newest.peek(run)
            self._show(run)

    def _fires(self, schedule: Schedule, run: Run) -> bool:
        """Return whether the schedule is due, and count it."""
        if not schedule.due(run.clock):
            return False
        schedule.fired(run.clock)
        return True

    # -- evaluation and prediction ---------------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._around_loaders(run)

    @closing
    def on_eval_loader_start(self, run: Run) -> None:
        if self._loaders:
            self._loaders[-1].start_loader(run)

    def on_eval_batch_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_loader(run)

    @closing
    def on_eval_end(self, run: Run) -> None:
        self._read(run, only=f"{run.stage}/")

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._around_loaders(run)

    def on_predict_batch_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_loader(run)

    def _around_loaders(self, run: Run) -> Iterator[None]:
        """Add a bar for an evaluation or a prediction, and remove it at the end."""
        self._enter_loaders(run)
        yield
        self._leave_loaders(run)

    @closing
    def _enter_loaders(self, run: Run) -> None:
        """Add the bar of an evaluation or a prediction."""
        self._loaders.append(LoaderTrack(run, perf_counter()))
        if self._display is None:
            self._show(run)

    @closing
    def _leave_loaders(self, run: Run) -> None:
        """Remove the bar, and do not count its time in the speed of training."""
        if not self._loaders:
            return
        self._last_loader = track = self._loaders.pop()
        if self._train is not None and not self._loaders:
            is_evaluation = track.name.partition("/")[0] == "val"
            self._train.set_aside(perf_counter() - track.began, run.clock.step if is_evaluation else None)
        if not self._epoch_ending and not self._ends(run):  # Otherwise the next update shows the same and more.
            self._show_edge(run)

    def _ends(self, run: Run) -> bool:
        """True if training has reached ``max_duration``.

        The last log interval and the last update follow.
        """
        return self._trains and run.max_duration is not None and run.clock.reached(run.max_duration)

    @closing
    def _tick_of_loader(self, run: Run) -> None:
        """Update the display after a batch of an evaluation or a prediction."""
        if self._schedule is None:  # A schedule in steps or epochs does not apply to evaluations.
            self._show(run)

    # -- the end -------------------------------------------------------------------------------

    def around_fit(self, run: Run) -> Iterator[None]:
        """Close the display of a callback that was removed: it gets no ``on_teardown``."""
        try:
            yield
        finally:
            if self not in run.callbacks:
                self._close()

    @closing
    def on_exception(self, run: Run) -> None:
        self._note = f"stopped: {type(run.exception).__name__}"
        self._over = True
        # No metric is read: after an error of the device, reading would fail again.
        if self._display is not None:
            self._show(run)
        self._close_display()

    @closing
    def on_teardown(self, run: Run) -> None:
        self._show_end(run)
        self._close()

    def _show_end(self, run: Run) -> None:
        """Show the last update of the call."""
        self._over = True
        if self._display is not None:
            self._read(run)
            self._note = self._note or self._trouble(run)
            self._show(run)

    def _trouble(self, run: Run) -> str:
        """Return the losses that are not finite at the end of training, as a string."""
        if self._train is None:
            return ""
        metrics = run.metrics
        return ", ".join(losses_not_finite({name: metrics[name] for name in metrics if name.endswith("loss")}))

    def _close(self) -> None:
        """Close everything that the callback has opened."""
        self._close_display()

    def _close_display(self) -> None:
        """Close the display, if one is open."""
        display, self._display, self._due = self._display, None, math.inf
        if display is not None:
            display.close()

    # -- showing -------------------------------------------------------------------------------

    def _show_edge(self, run: Run) -> None:
        """Show the end of an epoch or an evaluation at once, unless they end too often to be read."""
        if self._display is None:
            return
        if self._schedule is not None and self._schedule.every.unit == "ep":
            wanted = self._fires(self._schedule, run)
        else:
            wanted = self._pace.edge(perf_counter())
        if wanted:
            self._show(run)

    def _show(self, run: Run) -> None:
        """Update the display. Open it first if necessary."""
        if self._due == math.inf:  # No display is wanted, or it was closed.
            return
        began = perf_counter()
        display = self._display or self._open(run, began)
        if display is None:
            self._due = math.inf
            return
        display.update(self._progress(run, began))
        self._pace.shown(began, perf_counter())
        self._due = self._pace.due if self._schedule is None else 0.0

    def _open(self, run: Run, now: float) -> ProgressDisplay | None:
        """Create and start the display."""
        style = self._style(run)
        if style is None:
            return None
        every = self._interval(run)
        self._schedule = None if every is None or every.unit == "s" else Schedule(every)
        if every is not None and every.unit == "s":
            self._pace = Pace(every.value, burst=style.burst)
        else:
            self._pace = Pace(style.interval, burst=style.burst, thin=style.thin)
        self._pace.start(now)
        self._began = now
        self._display = style.make()
        self._display.start(run)
        return self._display

    def _interval(self, run: Run) -> Duration | None:
        """Return how often to update, or ``None`` for the default of the display."""
        if self.every is None or (self.every.unit == "dur" and run.max_duration is None):
            return None
        return self.every.of(run.max_duration)

    def _progress(self, run: Run, now: float) -> Progress:
        """Return the values to display."""
        bars, beside = ((), "") if self._train is None else self._train.show(run, now)
        last = self._last_loader if self._train is None else None  # Without training, the finished bar stays.
        loaders = self._loaders or ([] if last is None else [last])
        bars += tuple(track.show() for track in loaders)
        metrics = self._newest.shown(training=self._train is not None)
        return Progress(bars, metrics, now - self._began, beside, self._note, self._over)

    def _read(self, run: Run, only: str = "") -> None:
        """Read the newest metrics if there is a display."""
        if self._due != math.inf:
            self._newest.read(run, only)


class Newest:
    """Final values of the metrics to display, or the loss of a step until there is one.

    Args:
        names: Metrics to show. If empty: those that callbacks monitor, then some of ``train/…`` and ``val/…``.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._monitored: list[str] = []
        self._values: dict[str, Value] = {}
        self._loss: float | None = None
        self._has_averages = False

    def read(self, run: Run, only: str = "") -> None:
        """Record values that have just become final.

        Reading a value while it is still averaged would wait for the device, and would split its sum at a
        time-dependent step.

        Args:
            run: The run to read from.
            only: Prefix of the metrics to read.
        """
        metrics = run.metrics
        # An evaluation measures one stage. Values of the others are from an earlier fit.
        stale = () if run.is_training_run else tuple(its for its in MAX_METRICS if its != f"{run.stage}/")
        self._monitored = monitored_metrics(run.callbacks, run.schedulers)
        for name in list(metrics):
            wanted = name in self._names or (not self._names and (_of_interest(name) or name in self._monitored))
            if wanted and name.startswith(only) and not name.startswith(stale):
                self._values[name] = metrics[name]
        if run.stage == "train" and run.log_every is not None and any(name.startswith("train/") for name in metrics):
            self._has_averages, self._loss = True, None  # A task with several optimizers has no train/loss.

    def peek(self, run: Run) -> None:
        """Record the loss of this step, until there is an average.

        Reading from the CPU costs nothing. Reading from a GPU would synchronize, so only the first loss is
        read, and none if no average will replace it.

        Args:
            run: The run to read from.
        """
        if self._has_averages or LOSS in self._values or (self._names and LOSS not in self._names):
            return
        before, self._loss = self._loss, None
        with suppress(Exception):  # A task with manual optimization may have no loss.
            loss = run.loss.detach()
            if loss.device.type == "cpu" or (before is None and run.log_every is not None):
                before = loss.reshape(1).tolist()[0]
            self._loss = before

    def shown(self, *, training: bool) -> dict[str, Value | None]:
        """Return the values to show, in order. In training, also names without a value."""
        values = self._values if self._loss is None else {LOSS: self._loss, **self._values}
        names = self._names or self._some(values)
        return {name: values.get(name) for name in names if training or name in values}

    def _some(self, values: Mapping[str, Any]) -> list[str]:
        """Return the monitored metrics, then some numbers of each prefix, losses first."""
        numbers = [name for name, value in values.items() if not isinstance(value, list)]
        return choose_metrics(sorted(numbers, key=lambda name: not name.endswith("loss")), self._monitored, MAX_METRICS)


def _of_interest(name: str) -> bool:
    """True for metrics of a stage that are not means over an epoch."""
    return name.startswith(tuple(MAX_METRICS)) and not name.endswith("_epoch")


class Pace:
    """Time of the next update, in ``due``.

    The ends of epochs are shown at once while they are rare.

    Args:
        interval: Seconds between two updates.
        burst: Number of ends of epochs and evaluations that are shown at once between two updates.
        thin: Let the interval grow to 1/40 of the run's time, so that the log of a week stays small.

    Example:
        >>> pace = Pace(10.0, burst=1)
        >>> pace.start(0.0)
        >>> pace.shown(0.0, 0.0)
        >>> pace.due, pace.edge(1.0), pace.edge(2.0), pace.edge(10.0)
        (10.0, True, False, True)
    """

    __slots__ = ("_began", "_burst", "_cost", "_interval", "_refilled", "_spare", "_thin", "due")

    def __init__(self, interval: float, *, burst: int, thin: bool = False) -> None:
        self._interval = interval
        self._burst = self._spare = float(burst)
        self._thin = thin
        self._began = self._refilled = self._cost = self.due = 0.0

    def start(self, now: float) -> None:
        """Start to measure time."""
        self._began = self._refilled = now
        self._spare = self._burst
        self._cost = 0.0
        self.due = now

    def edge(self, now: float) -> bool:
        """Return whether to show the end of an epoch or evaluation, and count it.

        Some are shown at once, then one per two intervals.
        """
        self._spare = min(self._burst, self._spare + (now - self._refilled) / (2 * self._interval_at(now)))
        self._refilled = now
        if now >= self.due:
            return True
        if self._spare < 1:
            return False
        self._spare -= 1
        return True

    def shown(self, began: float, ended: float) -> None:
        """Record that an update took from ``began`` to ``ended``."""
        # A single slow update may be chance or the first one, with cold caches. Two in a row are not.
        cost, self._cost = min(self._cost, ended - began), ended - began
        self.due = ended + max(self._interval_at(ended), SHARE * cost)

    def _interval_at(self, now: float) -> float:
        """Return the interval at this time of the run."""
        return max(self._interval, min((now - self._began) / PART, SLOWEST)) if self._thin else self._interval
