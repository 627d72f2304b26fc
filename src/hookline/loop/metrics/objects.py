"""torchmetrics objects that are logged: computed at the right time, reset, and whole over an epoch.

In an evaluation an object begins anew, is computed at the end (with several named loaders, at the end of each), and
is then as it was before. In training each interval's row is of that interval; the states of the intervals are merged
as those of several processes are, and give the row of the epoch. An object whose states cannot be merged, because
they are no sums, extremes or lists, is computed once an epoch.
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

from hookline.errors import HooklineWarning, MetricError
from hookline.loop.data.random_states import same_random_state
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
"""What was computed, by the name of its row; tensors are still on their device."""
Tolerates = Callable[[Exception], bool]


class ObjectSeries:
    """One metric object under one name. A name that ends with a slash is that of a collection logged as a whole."""

    __slots__ = (
        "all_ranks", "carried", "epoch", "found", "given", "metric", "name", "noted", "of_loader", "tolerates",
        "updates", "whole",
    )  # fmt: skip

    def __init__(self, name: str, metric: Any = None, *, of_loader: bool = False) -> None:
        self.name = name
        self.metric = metric
        self.of_loader = of_loader
        self.noted = False
        """It was logged in this interval."""
        self.whole = False
        """It cannot be merged, and was logged in this epoch."""
        self.epoch: dict[str, Any] = {}
        """The merged states of the epoch's intervals."""
        self.found: Values | None = None
        """What came out, once its loader is done."""
        self.carried: dict[str, Any] = {}
        """From a checkpoint: the state of an object that nobody has shown yet."""
        self.all_ranks: dict[str, Any] = {}
        """The merged states of all ranks at the last reduction over them; the object itself keeps this rank's own."""
        self.updates: tuple[int, ...] = ()
        """How often it was updated then."""
        self.given: Values | None = None
        """What other ranks have computed at the last reduction, where this one cannot do so alone."""
        self.tolerates: Tolerates | None = None
        """An optional callback logs it: whether the run goes on without it after an error."""

    @property
    def is_open(self) -> bool:
        return self.noted or self.whole

    @property
    def is_changed(self) -> bool:
        """Whether it was updated since the last reduction over ranks."""
        return self.metric is not None and was_updated(self.metric) and updates_of(self.metric) != self.updates

    def note(self, metric: Any, *, tolerates: Tolerates | None = None, muted: bool = False) -> None:
        """It is logged: the same object each time. ``muted``: with a batch that does not count."""
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
        """What it comes to now, by the name of the row; nothing is reset."""
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
        """``together``: by all ranks at once, and torchmetrics puts their states together. Else it must not try to."""
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
            self.found = {}  # it is asked for several times, and fails once
            return self.found

    def _flat(self, name: str, value: Any) -> Iterator[tuple[str, float | Tensor]]:
        if isinstance(value, Mapping):
            for key, item in value.items():
                if name.endswith("/"):  # a collection as a whole: a key with a slash is a full name
                    yield from self._flat(key if "/" in key else f"{name}{key}", item)
                else:
                    yield from self._flat(f"{name}/{key}", item)
            return
        number = number_or_tensor(name, value)
        if isinstance(number, Tensor) and number.numel() > LARGEST_ARRAY:
            raise MetricError(f"{name}: {number.numel()} values are too many for a metric; {LARGEST_ARRAY} at most")
        if isinstance(number, Tensor) and number.device.type != "mps":  # which has no float64
            number = number.to(torch.float64)  # counts of a confusion matrix stay exact among other numbers
        yield name, number

    @contextmanager
    def _holding(self, states: Mapping[str, Any]) -> Iterator[None]:
        """With other states than its own, for as long as it is computed."""
        aside = SetAside([self.metric])
        try:
            load_metric_states(self.metric, states)
            yield
        finally:
            aside.put_back()

    def compute_together(self) -> None:
        """By all: compute it, and let torchmetrics put the states of all ranks together."""
        self.given = self.computed(together=True)

    def set_merged(self, states: dict[str, Any]) -> None:
        """Set the merged states of all ranks. The object itself keeps the states of this rank."""
        self.all_ranks, self.updates = states, updates_of(self.metric)

    def receive(self, rows: Values) -> None:
        """Set the rows that other ranks have computed: this rank has no such object."""
        self.noted, self.given = True, rows

    def end_loader(self, found: Values) -> None:
        """Keep the rows of a loader until the evaluation ends, and reset the object for the next loader."""
        self.found = found
        self.begin_anew()

    def begin_anew(self) -> None:
        """What it has measured is in a row."""
        self.all_ranks, self.updates, self.given = {}, (), None
        if self.metric is not None:
            self.metric.reset()

    def end_interval(self, *, of_epoch: bool = True) -> Values:
        """The row of the interval; its state goes into that of the epoch."""
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
        self.begin_anew()
        return values

    def end_epoch(self) -> Values:
        """The row of the whole epoch."""
        if self.whole:
            self.whole = False
            values = self.result()
            self.begin_anew()
            return values
        states, self.epoch = self.epoch, {}
        if not states or self.metric is None:
            return {}
        with self._holding(states):
            return self.computed()

    def state_dict(self, paths: Mapping[int, str]) -> dict[str, Any]:
        """``paths`` are of the objects that somebody else saves, by ``id``."""
        at = paths.get(id(self.metric))
        own = at is None and self.metric is not None and self.is_open
        states = metric_states(self.metric) if own else self.carried
        return {"noted": self.noted, "whole": self.whole, "epoch": self.epoch, "at": at, "states": states}

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any]) -> None:
        self.noted, self.whole, self.epoch = state["noted"], state["whole"], dict(state["epoch"])
        self.metric, self.carried = by_path.get(state["at"]), dict(state["states"])


def updates_of(metric: nn.Module) -> tuple[int, ...]:
    """How often it was updated, and what is inside it."""
    return tuple(vars(part).get("_update_count", 0) for _, part in metrics_in(metric))


@contextmanager
def alone(metric: nn.Module) -> Iterator[None]:
    """Torchmetrics would wait for the other ranks in ``compute``, also for one that never comes there."""
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
    """What all layers of a book know of its objects."""

    seen: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By the name of a series: those of its rows, which are known once it has been computed."""
    warned: set[str] = field(default_factory=set)


class MetricObjects:
    """The objects of one layer of the metric book: of training, or of one evaluation."""

    def __init__(self, below: MetricObjects | None = None, module: nn.Module | None = None) -> None:
        """Above another one: the objects that were logged before begin anew, and so do all others in ``module``."""
        self._memory: Memory = Memory() if below is None else below._memory
        self._series: dict[str, ObjectSeries] = {}
        self._aside: SetAside | None = None
        self._unheard: SetAside | None = None  # while a batch is computed that does not count
        if below is not None:
            known = [metric for seen in self._memory.seen.values() if (metric := seen()) is not None]
            self._aside = SetAside(known if module is None else [*known, module])

    def note(self, name: str, metric: Any, *, of_loader: bool = False, tolerates: Tolerates | None = None) -> None:
        """An object was logged: under its full name or, a collection as a whole, under the prefix of the stage."""
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
        """A batch that does not count: objects may be updated and logged, and are then as they were before."""
        known = [metric for seen in self._memory.seen.values() if (metric := seen()) is not None]
        self._unheard = SetAside([*known, module])

    def unmute(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            unheard.put_back()

    def _check_other_names(self, name: str, metric: Any) -> None:
        for other in self._series.values():
            if other.metric is metric and other.name != name and other.is_open and other.found is None:
                raise MetricError(
                    f"{name}: this {type(metric).__name__} is logged as {other.name} already, and one state cannot "
                    f"serve two names; log metric.clone() under one of them"
                )

    # -- reading -------------------------------------------------------------------------------

    def value(self, name: str) -> float | Tensor | None:
        """What a row would be now; ``None`` if it would be none of this layer's."""
        for series in self._series.values():
            ours = name == series.name or name.startswith(f"{series.name.rstrip('/')}/") or series.name.endswith("/")
            if ours and series.is_open:
                found = self._result(series)
                if name in found:
                    return found[name]
        return None

    def names(self) -> Iterator[str]:
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
        """By name."""
        return self._series

    def end_interval(self, *, of_epoch: bool = True) -> Values:
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
        found: Values = {}
        for series in self._series.values():
            found.update(series.end_epoch())
        return found

    def state_dict(self, paths: Mapping[int, str]) -> dict[str, Any]:
        """``paths``: where the metrics are that are saved by others, by ``id``."""
        pending = {name: series for name, series in self._series.items() if series.is_open or series.epoch}
        return {name: series.state_dict(paths) for name, series in pending.items()}

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any]) -> None:
        self._series = {name: ObjectSeries(name) for name in state}
        for name, series in self._series.items():
            series.load_state_dict(state[name], by_path)
            if series.metric is not None:
                self._memory.seen[id(series.metric)] = weakref.ref(series.metric)

    def go_back(self, state: Mapping[str, Any], by_path: Mapping[str, Any], *, same_epoch: bool) -> None:
        """Steps were taken back, and with them the objects that are saved with others; before ``load_state_dict``.

        The rest begin anew, and take up what was measured before when they are logged again. Of an epoch that is
        over nothing is pending.
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
        """What was logged for this named loader is done: its object begins anew with the next one."""
        for series in self._series.values():
            if series.of_loader and series.noted and series.found is None:
                series.end_loader(self._result(series))

    def close(self) -> Values:
        """The end of an evaluation: what was measured; then every object is as it was before."""
        try:
            found: Values = {}
            for series in self._series.values():
                if series.noted:
                    found.update(self._result(series))
            return found
        finally:
            self.drop()

    def drop(self) -> None:
        """Put every object back, whatever was measured; one that was first logged here is reset."""
        aside, self._aside = self._aside, None
        for series in self._series.values():
            if series.metric is not None and (aside is None or series.metric not in aside):
                series.metric.reset()
        if aside is not None:
            aside.put_back()
        self._series = {}
