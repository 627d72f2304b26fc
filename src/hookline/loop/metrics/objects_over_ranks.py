"""Metric objects over ranks: the states of all of them merged, in one exchange for all objects.

Torchmetrics' own way waits for every rank in every object, also for one that was never updated. It is left only
where states cannot be merged, and then all ranks must have updated the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookline.checkpoint.packing import pack, unpack
from hookline.errors import MetricError
from hookline.loop.metrics.object_state import ObjectSeries, updates_of
from hookline.loop.metrics.object_states import can_merge, merged, metric_states, settle_groups, was_updated
from hookline.loop.metrics.objects import MetricObjects, Values
from hookline.loop.metrics.over_ranks import OBJECT, WHOLE, Key, Reduction, Sums
from hookline.loop.metrics.series import to_python


def object_sums(objects: MetricObjects) -> dict[Key, Sums]:
    """Of each object that is open on this rank: whether there is anything new to merge."""
    found: dict[Key, Sums] = {}
    for name, series in objects.series.items():
        if series.is_open and series.found is None and series.metric is not None:
            mergeable = can_merge(series.metric)
            new = series.is_changed if mergeable else was_updated(series.metric)
            found[name, None] = Sums((OBJECT if mergeable else WHOLE, ()), [], float(new))
    return found


def agree_on_objects(
    objects: MetricObjects, found: Mapping[Key, Sums], reduction: Reduction, *, compute_whole: bool
) -> None:
    """By all, after the sums, which say who has which: give each object the states of all ranks."""
    named = {name: sums for (name, _), sums in found.items() if sums.spec[0] == OBJECT and sums.weight}
    if named:
        _merge(objects, list(named), reduction)
        lacking = [name for name, sums in named.items() if sums.ranks < reduction.group.size]
        if lacking:
            reduction.partial = True
            _give(objects, lacking, reduction)
    whole = {name: sums.weight for (name, _), sums in found.items() if sums.spec[0] == WHOLE}
    if compute_whole:
        for name, updated in whole.items():
            if updated:
                series = objects.series.get(name)
                _check_all_have(name, None if series is None else series.metric, updated, reduction)
                if series is not None:
                    series.given = series.computed(together=True)
    else:
        reduction.whole.update(whole)


def end_epoch(objects: MetricObjects, reduction: Reduction) -> Values:
    """By all: the rows of the whole epoch. What was merged at each interval needs no more than to be computed."""
    names, reduction.whole = sorted(reduction.whole), set()
    if names:
        own = {name: objects.series.get(name) for name in names}
        said = reduction.group.exchange([_is_updated(series) for series in own.values()])
        for index, (name, series) in enumerate(own.items()):
            updated = sum(its[index] for its in said)
            if updated:
                _check_all_have(name, None if series is None else series.metric, updated, reduction)
                if series is not None:
                    series.given = series.computed(together=True)
    rows = objects.end_epoch()
    if reduction.partial:
        reduction.partial = False
        rows = _filled(rows, reduction)
    return rows


def _is_updated(series: ObjectSeries | None) -> bool:
    return series is not None and series.metric is not None and was_updated(series.metric)


def _merge(objects: MetricObjects, names: list[str], reduction: Reduction) -> None:
    own: dict[str, Any] = {}
    for name in names:
        series = objects.series.get(name)
        if series is not None and _is_updated(series):
            settle_groups(series.metric)
            own[name] = metric_states(series.metric)
    said = [unpack(data) for data in reduction.group.gather(pack({"part": reduction.part, "states": own}))]
    for name in names:
        series = objects.series.get(name)
        if series is None or series.metric is None:
            continue
        parts: dict[int, Any] = {}  # ranks with the same data have measured the same
        for its in said:
            if name in its["states"]:
                parts.setdefault(its["part"], its["states"][name])
        whole: dict[str, Any] = {}
        for states in parts.values():
            whole = merged(series.metric, whole, states) if whole else states
        series.all_ranks, series.updates = whole, updates_of(series.metric)


def _give(objects: MetricObjects, names: list[str], reduction: Reduction) -> None:
    """A rank that has no such object cannot compute it: it is told what came out."""
    own: Values = {}
    for name in names:
        series = objects.series.get(name)
        if series is not None and series.metric is not None:
            own.update(series.result())
    by_name = {name: series.metric is not None for name, series in objects.series.items()}
    given = _filled(own, reduction)
    for name in names:
        if not by_name.get(name):
            series = objects.series.setdefault(name, ObjectSeries(name))
            series.noted = True
            series.given = {row: value for row, value in given.items() if _is_of(row, name)}


def _is_of(row: str, name: str) -> bool:
    return row == name or row.startswith(name if name.endswith("/") else f"{name}/")


def _filled(rows: Values, reduction: Reduction) -> Values:
    """By all: with the rows that only other ranks have."""
    plain = dict(zip(rows, to_python(list(rows.values())), strict=True))
    found: Values = dict(rows)
    for its in reduction.group.exchange(plain):
        for name, value in its.items():
            found.setdefault(name, torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value)
    return found


def _check_all_have(name: str, metric: Any, updated: float, reduction: Reduction) -> None:
    size = reduction.group.size
    if updated < size:
        kind = "metric object" if metric is None else type(metric).__name__
        raise MetricError(
            f"{name}: the states of this {kind} cannot be merged, so torchmetrics puts them together itself, which "
            f"needs an update on each rank; {int(updated)} of {size} ranks have one. Use a metric whose states are "
            f"sums, extremes or lists, or larger intervals"
        )
