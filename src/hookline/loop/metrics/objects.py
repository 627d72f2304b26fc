"""Logged torchmetrics objects: when they are computed, merged, reset and restored.

- In an evaluation an object is reset at the start, computed at the end (with several named loaders, at the end of each
  loader), and then restored.
- In training an object is computed and reset at the end of each interval. The states of the intervals are merged, as
  those of several processes are, and give the row of the epoch.
- An object whose states cannot be merged, because they are not sums, extremes or lists, is computed once per epoch.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookline.distributed.random_states import same_random_state
from hookline.errors import HooklineWarning, MetricError
from hookline.loop.metrics.object_states import (
    SetAside,
    can_merge,
    load_metric_states,
    merged,
    metric_states,
    metrics_in,
    was_updated,
)
from hookline.loop.metrics.series import LARGEST_ARRAY, number_or_tensor

Values = dict[str, float | Tensor]
"""Computed values by the names of their rows. Tensors are on their devices."""
Tolerates = Callable[[Exception], bool]
"""Handles an error of an object. True if the run continues without it."""


class ObjectSeries:
    """One metric object under one name.

    Args:
        name: The name. For a collection that was logged without a name, a prefix that ends with a slash.
        metric: The object.
        of_loader: True if the object measures one named loader of several.
    """

    __slots__ = (
        "all_ranks", "carried", "epoch", "found", "given", "metric", "name", "noted", "of_loader", "tolerates",
        "updates", "whole",
    )  # fmt: skip

    def __init__(self, name: str, metric: Any = None, *, of_loader: bool = False) -> None:
        self.name = name
        self.metric = metric
        self.of_loader = of_loader
        self.noted = False
        """True if the object was logged in this interval."""
        self.whole = False
        """True if the object cannot be merged, and was logged in this epoch."""
        self.epoch: dict[str, Any] = {}
        """The merged states of the epoch's intervals."""
        self.found: Values | None = None
        """Computed values of a loader that has ended."""
        self.carried: dict[str, Any] = {}
        """State from a checkpoint, until the object is logged again."""
        self.all_ranks: dict[str, Any] = {}
        """Merged states of all ranks at the last reduction. The object itself keeps the state of this rank."""
        self.updates: tuple[int, ...] = ()
        """Number of updates at the last reduction, for each metric inside."""
        self.given: Values | None = None
        """Values that all ranks computed together, or that other ranks computed, at the last reduction."""
        self.tolerates: Tolerates | None = None
        """Handles errors, if an optional callback logs the object."""

    @property
    def is_open(self) -> bool:
        return self.noted or self.whole

    @property
    def is_changed(self) -> bool:
        """True if the object was updated since the last reduction over ranks."""
        return self.metric is not None and was_updated(self.metric) and updates_of(self.metric) != self.updates

    def note(self, metric: Any, *, tolerates: Tolerates | None = None, muted: bool = False) -> None:
        """Note that the object is logged. It must be the same object each time.

        Args:
            metric: The object.
            tolerates: Handles errors, if an optional callback logs the object.
            muted: True in a padding batch.
        """
        self.tolerates = tolerates
        if self.metric is not metric:
            if self.is_open and self.metric is not None:
                raise MetricError(
                    f"{self.name}: another {type(metric).__name__} is logged under this name than before; make one "
                    f"object, keep it, and log it each time"
                )
            self.metric = metric
        if self.carried and not muted:
            self._take_carried()
        self.noted = True

    def _take_carried(self) -> None:
        saved, self.carried = self.carried, {}
        if can_merge(self.metric):
            load_metric_states(self.metric, merged(self.metric, saved, metric_states(self.metric)))
        else:
            warnings.warn(
                f"{self.name}: what this {type(self.metric).__name__} had measured before the resume is lost; make it "
                f"part of the task (self.acc = …) or of a callback, which save it",
                HooklineWarning,
                stacklevel=5,
            )

    def result(self) -> Values:
        """Return the current values by the names of their rows, without resetting the object."""
        if self.found is not None:
            return self.found
        if self.given is not None:
            return self.given
        if self.metric is None:
            return {}
        if not self.all_ranks:
            return self.computed()
        with self._holding(self.all_ranks):
            return self.computed()

    def computed(self, *, together: bool = False) -> Values:
        """Compute the object, and return its values by the names of their rows.

        Args:
            together: True if all ranks compute it at the same time, and torchmetrics gathers their states.
        """
        if not was_updated(self.metric):
            return {}
        try:
            with torch.no_grad(), same_random_state():
                if together:
                    return dict(self._flat(self.name, self.metric.compute()))
                with alone(self.metric):
                    return dict(self._flat(self.name, self.metric.compute()))
        except Exception as error:
            error.add_note(f"in compute() of the {type(self.metric).__name__} that is logged as {self.name!r}")
            if self.tolerates is None or not self.tolerates(error):
                raise
            self.found = {}  # The next calls must not fail again.
            return self.found

    def _flat(self, name: str, value: Any) -> Iterator[tuple[str, float | Tensor]]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                if name.endswith("/"):  # In a collection without a name, a key with a slash is a full name.
                    yield from self._flat(key if "/" in key else f"{name}{key}", item)
                else:
                    yield from self._flat(f"{name}/{key}", item)
            return
        number = number_or_tensor(name, value)
        if isinstance(number, Tensor) and number.numel() > LARGEST_ARRAY:
            raise MetricError(f"{name}: {number.numel()} values are too many for a metric; {LARGEST_ARRAY} at most")
        if isinstance(number, Tensor) and number.device.type != "mps":  # MPS does not support float64.
            number = number.to(torch.float64)  # Keep the counts of a confusion matrix exact.
        yield name, number

    @contextmanager
    def _holding(self, states: Mapping[str, Any]) -> Iterator[None]:
        """Load other states inside the block, and restore the object after it."""
        aside = SetAside([self.metric])
        try:
            load_metric_states(self.metric, states)
            yield
        finally:
            aside.restore()

    def compute_together(self) -> None:
        """Compute the object on all ranks together. Torchmetrics gathers their states."""
        self.given = self.computed(together=True)

    def set_merged(self, states: dict[str, Any]) -> None:
        """Set the merged states of all ranks. The object itself keeps the states of this rank."""
        self.all_ranks, self.updates = states, updates_of(self.metric)

    def receive(self, rows: Values) -> None:
        """Set the rows that other ranks have computed, because this rank does not have the object."""
        self.noted, self.given = True, rows

    def end_loader(self, found: Values) -> None:
        """Keep the rows of a loader, and reset the object for the next loader."""
        self.found = found
        self.reset()

    def reset(self) -> None:
        """Reset the object, after its values were read."""
        self.all_ranks, self.updates, self.given = {}, (), None
        if self.metric is not None:
            self.metric.reset()

    def end_interval(self, *, of_epoch: bool = True) -> Values:
        """Return the values of the interval, and merge its state into that of the epoch.

        Args:
            of_epoch: True if the interval counts in the epoch.
        """
        if not self.noted:
            return {}
        self.noted = False
        if self.metric is None:
            given, self.given = self.given, None
            return given or {}
        if of_epoch and not can_merge(self.metric):
            self.whole = True
            return {}
        values = self.result()
        if of_epoch and values:
            states = self.all_ranks or metric_states(self.metric)
            self.epoch = merged(self.metric, self.epoch, states) if self.epoch else states
        self.whole = False
        self.reset()
        return values

    def end_epoch(self) -> Values:
        """Return the values of the epoch."""
        if self.whole:
            self.whole = False
            values = self.result()
            self.reset()
            return values
        states, self.epoch = self.epoch, {}
        if not states or self.metric is None:
            return {}
        with self._holding(states):
            return self.computed()

    def state_dict(self, paths: Mapping[int, str]) -> dict[str, Any]:
        """Return the state.

        Args:
            paths: Paths by ``id`` of the objects that a module or callback saves.
        """
        at = paths.get(id(self.metric))
        own = at is None and self.metric is not None and self.is_open
        states = metric_states(self.metric) if own else self.carried
        return {"noted": self.noted, "whole": self.whole, "epoch": self.epoch, "at": at, "states": states}

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any]) -> None:
        self.noted, self.whole, self.epoch = state["noted"], state["whole"], dict(state["epoch"])
        self.metric, self.carried = by_path.get(state["at"]), dict(state["states"])


def updates_of(metric: nn.Module) -> tuple[int, ...]:
    """Return the number of updates of each metric in a metric, including itself."""
    return tuple(vars(part).get("_update_count", 0) for _, part in metrics_in(metric))


@contextmanager
def alone(metric: nn.Module) -> Iterator[None]:
    """Let ``compute`` use the states of this rank only. Torchmetrics would wait for all ranks."""
    kept = [(part, vars(part)["_to_sync"]) for _, part in metrics_in(metric) if "_to_sync" in vars(part)]
    try:
        for part, _ in kept:
            vars(part)["_to_sync"] = False
        yield
    finally:
        for part, its in kept:
            vars(part)["_to_sync"] = its


@dataclass(slots=True)
class Memory:
    """Facts about metric objects that all layers of a book use."""

    seen: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    """The objects that were logged, by ``id``."""
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the rows by the name of a series. They are known after the first ``compute``."""
    warned: set[str] = field(default_factory=set)
    """Names of the series about which Hookline has warned."""


class MetricObjects:
    """The metric objects of one layer of the metric book: of training, or of one evaluation.

    Args:
        below: The objects of the layer below. They are reset until this layer closes.
        module: Metric objects inside this module are reset as well.
    """

    def __init__(self, below: MetricObjects | None = None, module: nn.Module | None = None) -> None:
        self._memory: Memory = Memory() if below is None else below._memory
        self._series: dict[str, ObjectSeries] = {}
        self._aside: SetAside | None = None
        self._unheard: SetAside | None = None  # in a padding batch
        if below is not None:
            known = [metric for seen in self._memory.seen.values() if (metric := seen()) is not None]
            self._aside = SetAside(known if module is None else [*known, module])

    def note(self, name: str, metric: Any, *, of_loader: bool = False, tolerates: Tolerates | None = None) -> None:
        """Note that an object was logged.

        Args:
            name: Full name. For a collection that was logged without a name, the prefix of the stage.
            metric: The object.
            of_loader: True if the object measures one named loader of several.
            tolerates: Handles errors, if an optional callback logs the object.
        """
        series = self._series.get(name)
        if series is None or series.metric is not metric:
            self._check_other_names(name, metric)
            self._memory.seen[id(metric)] = weakref.ref(metric)
            if series is None:
                series = self._series[name] = ObjectSeries(name, of_loader=of_loader)
        series.note(metric, tolerates=tolerates, muted=self._unheard is not None)
        if self._unheard is not None and metric not in self._unheard:
            self._unheard.add(metric)

    def mute(self, module: nn.Module) -> None:
        """Begin a padding batch. ``unmute`` restores objects that it updates."""
        known = [metric for seen in self._memory.seen.values() if (metric := seen()) is not None]
        self._unheard = SetAside([*known, module])

    def unmute(self) -> None:
        """End a padding batch, and restore the objects."""
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            unheard.restore()

    def _check_other_names(self, name: str, metric: Any) -> None:
        for other in self._series.values():
            if other.metric is metric and other.name != name and other.is_open and other.found is None:
                raise MetricError(
                    f"{name}: this {type(metric).__name__} is logged as {other.name} already, and one state cannot "
                    f"serve two names; log metric.clone() under one of them"
                )

    # -- reading -------------------------------------------------------------------------------

    def value(self, name: str) -> float | Tensor | None:
        """Return the current value of a row. ``None`` if no object of this layer has such a row."""
        for series in self._series.values():
            ours = name == series.name or name.startswith(f"{series.name.rstrip('/')}/") or series.name.endswith("/")
            if ours and series.is_open:
                found = self._result(series)
                if name in found:
                    return found[name]
        return None

    def names(self) -> Iterator[str]:
        """Iterate over the names of all rows that have a value."""
        for series in self._series.values():
            agreed = series.found is not None or series.given is not None or bool(series.all_ranks)
            there = agreed or (series.metric is not None and was_updated(series.metric))
            if series.is_open and there:
                yield from self._memory.names.get(series.name) or self._result(series)

    def _result(self, series: ObjectSeries) -> Values:
        found = series.result()
        if found:
            self._memory.names[series.name] = tuple(found)
        return found

    # -- training ------------------------------------------------------------------------------

    @property
    def series(self) -> dict[str, ObjectSeries]:
        """The objects by name."""
        return self._series

    def end_interval(self, *, of_epoch: bool = True) -> Values:
        """Return the values of the interval, and reset the objects.

        Args:
            of_epoch: True if the interval counts in the epoch.
        """
        found: Values = {}
        for series in self._series.values():
            found.update(series.end_interval(of_epoch=of_epoch))
            if series.whole and series.name not in self._memory.warned:
                self._memory.warned.add(series.name)
                warnings.warn(
                    f"{series.name}: the states of a {type(series.metric).__name__} cannot be merged, so it gets no "
                    f"row of each interval, only {series.name}_epoch",
                    HooklineWarning,
                    stacklevel=2,
                )
        return found

    def end_epoch(self) -> Values:
        """Return the values of the epoch."""
        found: Values = {}
        for series in self._series.values():
            found.update(series.end_epoch())
        return found

    def state_dict(self, paths: Mapping[int, str]) -> dict[str, Any]:
        """Return the states of all objects with pending values.

        Args:
            paths: Paths by ``id`` of the objects that a module or callback saves.
        """
        pending = {name: series for name, series in self._series.items() if series.is_open or series.epoch}
        return {name: series.state_dict(paths) for name, series in pending.items()}

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any]) -> None:
        self._series = {name: ObjectSeries(name) for name in state}
        for name, series in self._series.items():
            series.load_state_dict(state[name], by_path)
            if series.metric is not None:
                self._memory.seen[id(series.metric)] = weakref.ref(series.metric)

    def go_back(self, state: Mapping[str, Any], by_path: Mapping[str, Any], *, same_epoch: bool) -> None:
        """Reset objects after a rollback, before ``load_state_dict``.

        Objects that a module or callback has restored stay, unless their epoch is over. Any other object gets its saved
        state when it is logged again.

        Args:
            state: The state at the step to which the run returns.
            by_path: Objects that a module or callback has restored, by path.
            same_epoch: True if that step is in the current epoch.
        """
        restored = {id(metric) for metric in by_path.values()}
        for seen in self._memory.seen.values():
            metric = seen()
            if metric is not None and id(metric) not in restored:
                metric.reset()
        for its in () if same_epoch else state.values():
            if its["at"] in by_path:
                by_path[its["at"]].reset()

    # -- evaluation ----------------------------------------------------------------------------

    def end_loader(self) -> None:
        """Compute the objects of a named loader that ends, and reset them for the next loader."""
        for series in self._series.values():
            if series.of_loader and series.noted and series.found is None:
                series.end_loader(self._result(series))

    def close(self) -> Values:
        """Return the values of an evaluation that ends, and restore all objects."""
        try:
            found: Values = {}
            for series in self._series.values():
                if series.noted:
                    found.update(self._result(series))
            return found
        finally:
            self.drop()

    def drop(self) -> None:
        """Restore all objects. Reset those that were first logged in this layer."""
        aside, self._aside = self._aside, None
        for series in self._series.values():
            if series.metric is not None and (aside is None or series.metric not in aside):
                series.metric.reset()
        if aside is not None:
            aside.restore()
        self._series = {}
