"""``ProgressBar``: how far a run is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from hookline.callbacks.watch import styles
from hookline.callbacks.watch.display import Progress, ProgressDisplay
from hookline.callbacks.watch.pace import Pace
from hookline.callbacks.watch.tracks import LoaderTrack, TrainTrack
from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.records import Value

if TYPE_CHECKING:
    from hookline.run import Run

MOST = {"train/": 2, "val/": 3, "test/": 3}
"""So many metrics of each kind are shown when the user names none."""
STALE: dict[str, tuple[str, ...]] = {
    "evaluate": ("train/", "test/"),
    "test": ("train/", "val/"),
    "predict": ("train/", "val/", "test/"),
}
"""What these calls do not measure: a value of it is of an earlier ``fit``."""


class ProgressBar(Callback):
    """Shows how far a run is, how fast, when it will be done, and its newest metrics.

    In a terminal and in a notebook: a bar for the epochs and one for the steps (or a single one, in the unit of
    ``max_duration``), and one for the evaluation or prediction that is under way; what the program prints
    meanwhile appears above. In a log: a line now and then, and one at the end of each epoch and evaluation, but
    never many in a short time: 10,000 steps stay under 100 KB. It closes on every way out of a run.

    ``metrics`` are the names to show; none means the newest of ``train/…`` and ``val/…``. A value is that of the
    last complete interval (``log_every``), since to read one that is still being averaged would stop the device;
    before the first interval is over, ``train/loss`` is the loss of the last step. ``style`` is ``"rich"``,
    ``"plain"``, ``"auto"`` (plain unless standard output is a terminal that can move the cursor, or a notebook),
    ``None`` for no bar at all, or a ``ProgressDisplay`` of your own. ``every`` is how often it is updated, as a
    time or a count (``"30s"``, ``"100st"``); by default ten times a second, and in a log every 10 s, in a long
    run more rarely. It fires after each step and each batch of an evaluation, and takes at most about one per
    cent of the time.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> class Percent:
    ...     def start(self, run): ...
    ...     def update(self, progress):
    ...         self.last = f"{progress.bars[0].name} {progress.bars[0].count}: {progress.bars[0].share:.0%}"
    ...
    ...     def close(self):
    ...         print(self.last)
    >>> trainer = Trainer(max_duration="2ep", callbacks=[ProgressBar(style=Percent())], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
    epoch 2/2: 100%
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    """It runs last, and so shows what the others have logged and decided."""

    def __init__(
        self,
        metrics: Iterable[str] = (),
        *,
        style: Literal["auto", "rich", "plain"] | ProgressDisplay | None = "auto",
        every: str | Duration | None = None,
    ) -> None:
        if isinstance(metrics, str):
            raise RegistrationError(f"ProgressBar({metrics!r}): give a tuple of names, ({metrics!r},)")
        styles.check(style)
        self.metrics = tuple(metrics)
        if not all(isinstance(name, str) for name in self.metrics):
            raise RegistrationError(f"ProgressBar({self.metrics!r}): the names of metrics are texts, ('val/loss',)")
        self.style = style
        self.every = None if every is None else Duration.parse(every)
        self._forget()

    def _forget(self) -> None:
        """Nothing is shown, and nothing is known of a run."""
        self._display: ProgressDisplay | None = None
        self._pace = Pace(math.inf, burst=0)
        self._schedule: Schedule | None = None
        self._due = math.inf
        """The moment from which the next step or batch is shown: all that most of them look at."""
        self._began = 0.0
        self._train: TrainTrack | None = None
        self._loaders: list[LoaderTrack] = []
        self._last_loader: LoaderTrack | None = None
        self._values: dict[str, Value] = {}
        self._note = ""
        self._epoch_ending = False

    # -- training ------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._close()
        self._forget()
        if self.style is not None:
            self._due = 0.0  # also for a bar that joins a run under way: the next step opens it

    def on_fit_start(self, run: Run) -> None:
        self._train = TrainTrack(run, perf_counter())
        self._show(run)
        if self._display is not None:
            self._due = 0.0  # the first step is shown, too: that it works, and how large the loss is

    def on_train_start(self, run: Run) -> None:
        self._train = TrainTrack(run, perf_counter())

    def on_train_epoch_start(self, run: Run) -> None:
        if self._train is not None:
            self._train.start_epoch(run)

    def on_train_step_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_training(run)

    def on_metrics_ready(self, run: Run) -> None:
        self._read(run)

    def on_train_epoch_end(self, run: Run) -> None:
        self._epoch_ending = True
        if self._train is not None:
            self._train.mark(run, perf_counter())

    def on_epoch_end(self, run: Run) -> None:
        self._epoch_ending = False
        self._read(run)
        self._show_edge(run)

    def on_stop(self, run: Run) -> None:
        self._note = f"stopped: {' '.join(run.stop_reason.split())}"

    def _tick_of_training(self, run: Run) -> None:
        now = perf_counter()
        if self._train is None:
            self._train = TrainTrack(run, now)
        if self._schedule is None or (self._schedule.every.unit != "ep" and self._fires(self._schedule, run)):
            self._train.mark(run, now)
            self._show(run, loss=self._loss(run))

    def _fires(self, schedule: Schedule, run: Run) -> bool:
        if not schedule.due(run.clock):
            return False
        schedule.fired(run.clock)
        return True

    # -- evaluation and prediction ---------------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._around_loaders(run)

    def on_eval_loader_start(self, run: Run) -> None:
        if self._loaders:
            self._loaders[-1].start_loader(run)

    def on_eval_batch_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_loader(run)

    def on_eval_end(self, run: Run) -> None:
        self._read(run, only=f"{run.stage}/")

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._around_loaders(run)

    def on_predict_batch_end(self, run: Run) -> None:
        if perf_counter() >= self._due:
            self._tick_of_loader(run)

    def _around_loaders(self, run: Run) -> Iterator[None]:
        """The bar of an evaluation or a prediction, which goes on every way out of it."""
        track = LoaderTrack(run, perf_counter())
        self._loaders.append(track)
        if self._display is None:
            self._show(run)
        yield
        self._loaders.remove(track)
        self._last_loader = track
        if self._train is not None and not self._loaders:
            self._train.set_aside(perf_counter() - track.began)
        if not self._epoch_ending:  # else the end of the epoch is about to say the same
            self._show_edge(run)

    def _tick_of_loader(self, run: Run) -> None:
        if self._schedule is None:  # what is counted in steps or epochs says nothing of an evaluation
            self._show(run)

    # -- the end -------------------------------------------------------------------------------

    def on_exception(self, run: Run) -> None:
        self._note = f"stopped: {type(run.exception).__name__}"
        # No metric is read: after an error of the device that would be another one.
        if self._display is not None:
            self._show(run)
        self._close()

    def on_teardown(self, run: Run) -> None:
        if self._display is not None:
            self._read(run)
            self._show(run)
        self._close()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """A callback that fails is switched off and hears of no teardown: it must close its display itself."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._close()
            raise

    def _close(self) -> None:
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

    def _show(self, run: Run, loss: float | None = None) -> None:
        if self._due == math.inf:  # no bar is wanted, or it was closed
            return
        began = perf_counter()
        with self._closing():
            display = self._display or self._open(run, began)
            display.update(self._progress(run, began, loss))
        self._pace.shown(began, perf_counter())
        self._due = self._pace.due if self._schedule is None else 0.0

    def _open(self, run: Run, now: float) -> ProgressDisplay:
        style = styles.choose(self.style)
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

    def _progress(self, run: Run, now: float, loss: float | None) -> Progress:
        bars, beside = ((), "") if self._train is None else self._train.show(run, now)
        last = self._last_loader if self._train is None else None  # of an evaluation alone the finished bar stays
        loaders = self._loaders or ([] if last is None else [last])
        bars += tuple(track.show() for track in loaders)
        return Progress(bars, self._chosen(loss), now - self._began, beside, self._note)

    # -- metrics -------------------------------------------------------------------------------

    def _read(self, run: Run, only: str = "") -> None:
        """Note the values that have just become final. Between two such moments none is read.

        To read one that is still being averaged would wait for the device, and fold its sum at a moment that
        depends on the time of day.
        """
        if self._due == math.inf:
            return
        metrics, stale = run.metrics, STALE.get(run.entry_point, ())
        with self._closing():
            for name in list(metrics):
                wanted = name in self.metrics or (not self.metrics and _of_interest(name))
                if wanted and name.startswith(only) and not name.startswith(stale):
                    self._values[name] = metrics[name]

    def _loss(self, run: Run) -> float | None:
        """The loss of this step, as long as there is no average yet."""
        if "train/loss" in self._values or (self.metrics and "train/loss" not in self.metrics):
            return None
        try:
            return float(run.loss.detach())
        except Exception:  # a task that steps its optimizers itself may have none
            return None

    def _chosen(self, loss: float | None) -> dict[str, Value | None]:
        values = self._values if loss is None else {"train/loss": loss, **self._values}
        if self._train is None:  # an evaluation, a test or a prediction feeds only some of them
            return {name: values[name] for name in self.metrics or _newest(values) if name in values}
        return {name: values.get(name) for name in self.metrics or _newest(values)}


def _of_interest(name: str) -> bool:
    return name.startswith(tuple(MOST)) and not name.endswith("_epoch")


def _newest(values: dict[str, Any]) -> list[str]:
    """Some numbers of each kind, losses first."""
    names = [name for name, value in values.items() if not isinstance(value, list)]
    found = []
    for kind, most in MOST.items():
        of_kind = sorted((name for name in names if name.startswith(kind)), key=lambda name: not name.endswith("loss"))
        found += of_kind[:most]
    return found
