"""Base class of the monitors: when a row is due, and time that does not count as training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class Interval:
    """Record of the step of the last row, so that a monitor logs at most one row per step.

    Monitors log at the end of log intervals and of epochs, which may be the same step. A run may also be
    resumed at the end of an epoch. The step is saved with the state of the monitor: after a resume between the
    two events, the row may still have to be logged.
    """

    __slots__ = ("_step",)

    def __init__(self) -> None:
        self._step = 0

    def begin(self, run: Run) -> None:
        """Call in ``on_setup``: steps of an earlier run do not count."""
        self._step = min(self._step, run.clock.step)

    def take(self, run: Run) -> bool:
        """Return whether a row is due, and count it as logged."""
        if run.clock.step <= self._step:
            return False
        self._step = run.clock.step
        return True

    def state_dict(self) -> dict[str, int]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._step = state["step"]


class IntervalMonitor(Callback):
    """Base class of monitors that log one row at the end of each log interval and of each epoch.

    A subclass implements ``report``, which Hookline calls at most once per step.
    """

    optional = True
    state: ClassVar[tuple[str, ...]] = ("_interval",)
    shares_state = True

    def __init__(self) -> None:
        self._interval = Interval()

    def report(self, run: Run) -> None:
        """Log a row."""
        raise NotImplementedError

    def on_setup(self, run: Run) -> None:
        self._interval.begin(run)

    def on_metrics_ready(self, run: Run) -> None:
        if self._interval.take(run):
            self.report(run)

    def on_epoch_end(self, run: Run) -> None:
        if self._interval.take(run):
            self.report(run)


def stage_name(run: Run) -> str:
    """Return the stage, in a prediction with the name of its loader."""
    return f"{run.stage}/{run.loader_name}" if run.stage == "predict" and run.loader_name else run.stage


def named_for_stage(values: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Return the values of an evaluation or a prediction, with the stage after the first slash of each name.

    >>> named_for_stage({"memory/process": 531.2}, "val")
    {'memory/val/process': 531.2}
    """
    return {name.replace("/", f"/{stage}/", 1): value for name, value in values.items()}


class Aside:
    """Number and total seconds of phases that are not training, such as evaluations."""

    __slots__ = ("_open", "count", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self._open = 0

    def around(self, run: Run) -> Iterator[None]:
        """Measure a phase, as body of ``around_eval`` and similar hooks.

        A nested phase counts as a part of the outer one.
        """
        began = run.clock.seconds
        self._open += 1
        yield
        self._open -= 1
        if not self._open:
            self.seconds += run.clock.seconds - began
            self.count += 1
