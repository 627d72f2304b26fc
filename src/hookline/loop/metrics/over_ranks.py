"""Metrics over ranks: what each has pending becomes what all have, in one packed sum.

All ranks keep the same layout (which names there are, how each is reduced, and its shape), and only the layout says
how long the vector is: one of another length would end the process. A rank that lacks a name gives a weight of zero.
One that has a new name says so in the first slot; then all exchange their names, and add up once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hookline.checkpoint.packing import pack, unpack
from hookline.errors import MetricError
from hookline.loop.metrics.object_states import can_merge, merged, metric_states, settle_groups, was_updated
from hookline.loop.metrics.objects import MetricObjects, ObjectSeries, Values
from hookline.loop.metrics.series import Series, to_python

if TYPE_CHECKING:
    from hookline.loop.world.world import World

OBJECT, WHOLE = "object", "whole object"
"""In place of a reduction: a metric object whose states can be merged, and one whose states cannot."""

Key = tuple[str, int | None]
"""A name, and the step of its own if it was logged with one."""
Spec = tuple[str, tuple[int, ...]]
"""How it is reduced, and its shape."""


class Sums(NamedTuple):
    """What one rank has of a metric, or all have."""

    spec: Spec
    total: list[float]
    weight: float
    ranks: float = 1.0
    """How many have it."""

    def value(self) -> Any:
        """The total: a number, or an array."""
        shape = self.spec[1]
        return torch.tensor(self.total, dtype=torch.float64).reshape(shape) if shape else self.total[0]


class Reduction:
    """Adds up over the ranks of a run. Each call is to be made by all of them, at the same place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.group = world.group
        self._layouts: dict[str, dict[Key, Spec]] = {}
        self._whole: set[str] = set()  # objects of this epoch that all ranks compute together at its end
        self._partial = False  # in this epoch some ranks have not logged some object

    @property
    def broken(self) -> bool:
        """A rank has failed: what is pending is not added up any more, and no row is made of one rank's part."""
        return self._world.broken

    @property
    def part(self) -> int:
        """Which part of the data this rank has; several may have the same."""
        return self._world.shares[1]

    def note_whole(self, names: Iterable[str]) -> None:
        """Note objects that all ranks compute together when the epoch ends."""
        self._whole.update(names)

    def take_whole(self) -> set[str]:
        """Return the objects that all ranks compute together at the end of the epoch, and forget them."""
        names, self._whole = self._whole, set()
        return names

    def note_partial(self) -> None:
        """Note that in this epoch some ranks have not logged some object."""
        self._partial = True

    def take_partial(self) -> bool:
        """Return whether in this epoch some ranks have not logged some object, and forget it."""
        partial, self._partial = self._partial, False
        return partial

    def reduce(self, place: str, mine: Mapping[Key, Sums], *, left: bool = False) -> tuple[dict[Key, Sums], bool]:
        """By all: what all have pending by name, and whether any of them has ``left`` its evaluation.

        Each ``place`` (training, an evaluation) has a layout of its own.
        """
        layout = self._layouts.setdefault(place, {})
        new = any(layout.get(key) != part.spec for key, part in mine.items())
        sums = self._add_up(layout, mine, new, left)
        if sums[0]:
            layout = self._layouts[place] = self._agree_on_names(layout, mine)
            sums = self._add_up(layout, mine, False, left)
        found: dict[Key, Sums] = {}
        at = 2
        for key, spec in layout.items():
            size = _size(spec)
            total, (weight, ranks) = sums[at : at + size], sums[at + size : at + size + 2]
            at += size + 2
            if ranks:
                found[key] = Sums(spec, self._settled(spec[0], total, ranks), weight, ranks)
        self._add_extremes(found, mine)
        for key in [key for key in layout if key[1] is not None]:  # a step of its own does not come again
            del layout[key]
        return found, sums[1] > 0

    def _add_up(self, layout: Mapping[Key, Spec], mine: Mapping[Key, Sums], new: bool, left: bool) -> list[float]:
        vector = [float(new), float(left)]
        for key, spec in layout.items():
            part = mine.get(key)
            if part is None or part.spec != spec:
                vector += [0.0] * (_size(spec) + 2)
            elif spec[0] in ("max", "min"):  # the numbers come later; NaN has no order, so it is told here
                vector += [value if math.isnan(value) else 0.0 for value in part.total] + [part.weight, part.ranks]
            else:
                vector += [*part.total, part.weight, part.ranks]
        sums: list[float] = self.group.total(torch.tensor(vector, dtype=torch.float64)).tolist()
        return sums

    def _settled(self, reduce: str, total: list[float], ranks: float) -> list[float]:
        if reduce == "last":  # of those that have it, the mean
            return [value / ranks for value in total]
        if reduce == "sum":  # ranks with the same data have counted the same
            return [value / self._world.copies for value in total]
        return total

    def _add_extremes(self, found: dict[Key, Sums], mine: Mapping[Key, Sums]) -> None:
        """The largest and smallest, in a reduction of their own where there are any."""
        keys = [key for key, sums in found.items() if sums.spec[0] in ("max", "min")]
        if not keys:
            return
        vector: list[float] = []
        for key in keys:
            part, sign = mine.get(key), _sign(found[key].spec)
            numbers = [-math.inf] * _size(found[key].spec) if part is None else [sign * value for value in part.total]
            vector += [-math.inf if math.isnan(number) else number for number in numbers]
        largest = iter(self.group.largest(torch.tensor(vector, dtype=torch.float64)).tolist())
        for key in keys:
            sign = _sign(found[key].spec)
            total = [sign * next(largest) + nan for nan in found[key].total]
            found[key] = found[key]._replace(total=total)

    def _agree_on_names(self, layout: Mapping[Key, Spec], mine: Mapping[Key, Sums]) -> dict[Key, Spec]:
        said = self.group.exchange([[*key, *part.spec] for key, part in mine.items()])
        by_key: dict[Key, dict[Spec, list[int]]] = {}
        for rank, names in enumerate(said):
            for name, step, reduce, shape in names:
                specs = by_key.setdefault((name, step), {})
                specs.setdefault((reduce, tuple(shape)), []).append(rank)
        for (name, _), specs in by_key.items():
            if len(specs) > 1:
                words = [f"{_words(spec)} on {_listed(ranks)}" for spec, ranks in specs.items()]
                raise MetricError(f"{name}: it is {', '.join(words)}; log the same kind under one name on all ranks")
        return {**layout, **{key: next(iter(specs)) for key, specs in by_key.items()}}


def own_sums(series: Mapping[Key, Series]) -> dict[Key, Sums]:
    """What this rank has logged since the last reduction, read in one transfer."""
    own = {key: its for key, its in series.items() if not its.has_no_own}
    for its in own.values():
        its.fold()
    totals = to_python([its.folded_total for its in own.values()])
    weights: list[Any] = to_python([its.folded_weight for its in own.values()])
    return {
        key: Sums((its.reduce, its.shape or ()), _flat(total), float(weight))
        for (key, its), total, weight in zip(own.items(), totals, weights, strict=True)
    }


# -- metric objects ------------------------------------------------------------------------------


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
            reduction.note_partial()
            _give(objects, lacking, reduction)
    whole = {name: sums.weight for (name, _), sums in found.items() if sums.spec[0] == WHOLE}
    if compute_whole:
        for name, updated in whole.items():
            if updated:
                series = objects.series.get(name)
                _check_all_have(name, None if series is None else series.metric, updated, reduction)
                if series is not None:
                    series.compute_together()
    else:
        reduction.note_whole(whole)


def end_epoch(objects: MetricObjects, reduction: Reduction) -> Values:
    """By all: the rows of the whole epoch. What was merged at each interval needs no more than to be computed."""
    names = sorted(reduction.take_whole())
    if names:
        own = {name: objects.series.get(name) for name in names}
        said = reduction.group.exchange([_is_updated(series) for series in own.values()])
        for index, (name, series) in enumerate(own.items()):
            updated = sum(its[index] for its in said)
            if updated:
                _check_all_have(name, None if series is None else series.metric, updated, reduction)
                if series is not None:
                    series.compute_together()
    rows = objects.end_epoch()
    if reduction.take_partial():
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
        series.set_merged(whole)


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
            series.receive({row: value for row, value in given.items() if _is_of(row, name)})


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


# ------------------------------------------------------------------------------------------------


def _flat(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for item in value for number in _flat(item)]
    return [float(value)]


def _size(spec: Spec) -> int:
    return 0 if spec[0] in (OBJECT, WHOLE) else math.prod(spec[1])


def _sign(spec: Spec) -> float:
    return 1.0 if spec[0] == "max" else -1.0


def _words(spec: Spec) -> str:
    reduce, shape = spec
    if reduce in (OBJECT, WHOLE):
        return "a metric object" + ("" if reduce == OBJECT else " that cannot be merged")
    return f"{'a number' if not shape else f'an array of the shape {shape}'} with reduce={reduce!r}"


def _listed(ranks: Iterable[int]) -> str:
    found: Sequence[str] = [str(rank) for rank in ranks]
    return f"rank{'s' if len(found) > 1 else ''} {', '.join(found)}"
