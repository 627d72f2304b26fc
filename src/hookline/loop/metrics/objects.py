"""torchmetrics objects that are logged: computed at the right time, reset, and whole over an epoch.

In an evaluation an object begins anew, is computed at the end (with several named loaders, at the end of each), and
is then as it was before. In training each interval's row is of that interval; the states of the intervals are merged
as those of several processes are, and give the row of the epoch. An object whose states cannot be merged, because
they are no sums, extremes or lists, is computed once an epoch.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hookline.errors import HooklineWarning, MetricError
from hookline.loop.metrics.object_state import ObjectSeries, Tolerates, Values
from hookline.loop.metrics.object_states import (
    SetAside,
    is_metric_object,
    load_metric_states,
    metric_states,
    was_updated,
)

__all__ = [
    "MetricObjects",
    "ObjectSeries",
    "Tolerates",
    "Values",
    "is_metric_object",
    "load_metric_states",
    "metric_states",
]


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
        series.tolerates = tolerates
        series.note(metric, muted=self._unheard is not None)
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
                series.found = self._result(series)
                series.begin_anew()

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
