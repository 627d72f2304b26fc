"""``Following``: the hooks of everything that shows how far a run is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from hookline.callbacks.watch.display import Progress, ProgressDisplay
from hookline.callbacks.watch.newest import Newest
from hookline.callbacks.watch.pace import Pace
from hookline.callbacks.watch.styles import Style
from hookline.callbacks.watch.tracks import LoaderTrack, TrainTrack
from hookline.progress import Duration, Schedule
from hookline.records.metric import losses_not_finite

if TYPE_CHECKING:
    from hookline.run import Run

Self = TypeVar("Self", bound="Following")


def closing(hook: Callable[[Self, Run], None]) -> Callable[[Self, Run], None]:
    """A callback that fails is switched off and hears of no teardown: it must leave everything clean itself."""

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
    """Follows training, evaluations and predictions, and updates a display when it is due.

    ``ProgressBar`` and ``LogFile`` are callbacks with these hooks. Between two updates a step costs a look at the time.
    """

    metrics: tuple[str, ...] = ()
    every: Duration | None = None

    def __init__(self) -> None:
        self._forget()

    def _style(self, run: Run) -> Style | None:
        """The display of the call that begins; ``None`` for none."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Nothing is shown, and nothing is known of a run."""
        self._display: ProgressDisplay | None = None
        self._pace = Pace(math.inf, burst=0)
        self._schedule: Schedule | None = None
        self._due = math.inf
        """The moment from which the next step or batch is shown: all that most of them look at."""
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
        self._forget()
        self._due = 0.0  # also for a bar that joins a run under way: the next step opens it

    @closing
    def on_fit_start(self, run: Run) -> None:
        if run.ending is not None:  # it was finished before this call: nothing is trained, and nothing shown
            return
        self._train = TrainTrack(run, perf_counter())
        self._show(run)
        if self._display is not None:
            self._due = 0.0  # the first step is shown, too: that it works, and how large the loss is

    @closing
    def on_train_start(self, run: Run) -> None:
        self._train, self._trains = TrainTrack(run, perf_counter()), True

    @closing
    def on_train_end(self, run: Run) -> None:
        self._trains = False  # what an own loop evaluates after it is shown as it comes

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
            self._train.mark(
                run, perf_counter()
            )  # a log is shown rarely: what lies between makes its speed a recent one
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
        now = perf_counter()
        if self._train is None:
            self._train = TrainTrack(run, now)
        if self._schedule is None or (self._schedule.every.unit != "ep" and self._fires(self._schedule, run)):
            self._train.mark(run, now)
            self._newest.peek(run)
            self._show(run)

    def _fires(self, schedule: Schedule, run: Run) -> bool:
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
        """The bar of an evaluation or a prediction, which goes on every way out of it."""
        self._enter_loaders(run)
        yield
        self._leave_loaders(run)

    @closing
    def _enter_loaders(self, run: Run) -> None:
        self._loaders.append(LoaderTrack(run, perf_counter()))
        if self._display is None:
            self._show(run)

    @closing
    def _leave_loaders(self, run: Run) -> None:
        if not self._loaders:
            return
        self._last_loader = track = self._loaders.pop()
        if self._train is not None and not self._loaders:
            self._train.set_aside(perf_counter() - track.began)
        if not self._epoch_ending and not self._ends(run):  # else that is about to say the same, and more
            self._show_edge(run)

    def _ends(self, run: Run) -> bool:
        """Training is over: what is left is its last interval, and the line of the end."""
        return self._trains and run.max_duration is not None and run.clock.reached(run.max_duration)

    @closing
    def _tick_of_loader(self, run: Run) -> None:
        if self._schedule is None:  # what is counted in steps or epochs says nothing of an evaluation
            self._show(run)

    # -- the end -------------------------------------------------------------------------------

    def around_fit(self, run: Run) -> Iterator[None]:
        """One that is removed hears of no teardown, but the scopes that it has open are left all the same."""
        try:
            yield
        finally:
            if self not in run.callbacks:
                self._close()

    @closing
    def on_exception(self, run: Run) -> None:
        self._note = f"stopped: {type(run.exception).__name__}"
        self._over = True
        # No metric is read: after an error of the device that would be another one.
        if self._display is not None:
            self._show(run)
        self._close_display()

    @closing
    def on_teardown(self, run: Run) -> None:
        self._show_end(run)
        self._close()

    def _show_end(self, run: Run) -> None:
        self._over = True
        if self._display is not None:
            self._read(run)
            self._note = self._note or self._trouble(run)
            self._show(run)

    def _trouble(self, run: Run) -> str:
        """Of a training that came to its end: the losses that it ended with, if these are not finite."""
        if self._train is None:
            return ""
        metrics = run.metrics
        return ", ".join(losses_not_finite({name: metrics[name] for name in metrics if name.endswith("loss")}))

    def _close(self) -> None:
        """Leave everything as it was."""
        self._close_display()

    def _close_display(self) -> None:
        display, self._display, self._due = self._display, None, math.inf
        if display is not None:
            display.close()

    # -- showing -------------------------------------------------------------------------------

    def _show_edge(self, run: Run) -> None:
        """Something has ended. It is shown at once, unless such things come too fast to be read."""
        if self._display is None:
            return
        if self._schedule is not None and self._schedule.every.unit == "ep":
            wanted = self._fires(self._schedule, run)
        else:
            wanted = self._pace.edge(perf_counter())
        if wanted:
            self._show(run)

    def _show(self, run: Run) -> None:
        if self._due == math.inf:  # nothing is wanted, or it was closed
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
        if self.every is None or (self.every.unit == "dur" and run.max_duration is None):
            return None
        return self.every.of(run.max_duration)

    def _progress(self, run: Run, now: float) -> Progress:
        bars, beside = ((), "") if self._train is None else self._train.show(run, now)
        last = self._last_loader if self._train is None else None  # of an evaluation alone the finished bar stays
        loaders = self._loaders or ([] if last is None else [last])
        bars += tuple(track.show() for track in loaders)
        metrics = self._newest.shown(training=self._train is not None)
        return Progress(bars, metrics, now - self._began, beside, self._note, self._over)

    def _read(self, run: Run, only: str = "") -> None:
        if self._due != math.inf:
            self._newest.read(run, only)
