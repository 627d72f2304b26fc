"""``SchedulerSteps``: steps the schedulers after a step, an epoch or an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.events.order import overlaps
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.schedulers import Scheduler
from hookline.loop.world.world import World
from hookline.run import RunState
from hookline.run.history import missing_metric


class SchedulerSteps:
    """Step the schedulers of a run when they are due.

    Args:
        state: The state of the run.
        book: The metrics of the run.
        world: The processes of the run.
    """

    def __init__(self, state: RunState, book: MetricBook, world: World) -> None:
        self._state, self._book, self._world = state, book, world
        self._plateaus: dict[str, int | None] = {}  # By metric: the step of the last value that was used.

    def after_step(self, optimizer: str) -> None:
        """Step the schedulers of an optimizer, once per training step.

        In one training step the optimizer may step several times.

        Args:
            optimizer: The name of the optimizer.
        """
        state, stepped = self._state, False
        its, step = state.optimizers[optimizer], state.clock.step + 1
        for scheduler in state.schedulers:
            if scheduler.unit == "st" and scheduler.scheduler.optimizer is its and scheduler.due(step):
                scheduler.scheduler.step()
                stepped = True
        if stepped and state.line.hooks.scheduler_step:
            state.line.emit(state.line.hooks.scheduler_step)

    def after_epoch(self, epoch: int) -> None:
        """Step the schedulers whose interval is a number of epochs.

        Args:
            epoch: The number of completed epochs.
        """
        self._step([s for s in self._state.schedulers if s.unit == "ep" and s.due(epoch)])

    def after_evaluation(self) -> None:
        """Step each ``ReduceLROnPlateau`` with its metric of the evaluation."""
        self._step([s for s in self._state.schedulers if s.unit == "eval"])

    def _step(self, schedulers: list[Scheduler]) -> None:
        names = dict.fromkeys(scheduler.monitor for scheduler in schedulers if scheduler.unit == "eval")
        values = {name: self._plateau_metric(name) for name in names}  # Several schedulers may monitor one metric.
        for scheduler in schedulers:
            if scheduler.unit != "eval":
                scheduler.scheduler.step()
            elif (value := values[scheduler.monitor]) is not None:
                scheduler.scheduler.step(value)
        line = self._state.line
        if schedulers and line.hooks.scheduler_step:
            line.emit(line.hooks.scheduler_step)

    def _plateau_metric(self, name: str) -> Any:
        """Return the monitored metric, or ``None`` if it has no new value on some rank."""
        found = self._book.value(name) if self._is_measured(name) else None
        # Inside an interval each rank has its own value, and the learning rate must be the same on all ranks.
        said = self._world.group.exchange(found)
        if any(value is None for value in said):
            return None
        self._plateaus[name] = self._book.measured_at(name)
        return sum(said) / len(said)

    def _is_measured(self, name: str) -> bool:
        """True if the metric has a new value.

        A callback may log a metric that it declares at some evaluations only.

        Raises:
            MetricError: If nothing logs the metric.
        """
        if name in self._book.names():
            return self._book.measured_at(name) != self._plateaus.get(name)
        if not any(overlaps(name, written) for written in self._state.line.written()):
            raise missing_metric("ReduceLROnPlateau", name, self._book.names())
        return False

    def state_dict(self) -> dict[str, int | None]:
        """Return the step of the last value that was used, by metric."""
        return dict(self._plateaus)

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Load the steps that ``state_dict`` returned."""
        self._plateaus = dict(state)
