"""Reduce metrics over ranks: numbers in one packed sum, metric objects in one exchange.

All ranks keep the same layout: the names, how each is reduced, and its shape. The layout determines the length of the
vector, because a vector of another length would end the process. A rank without a value for a name adds a weight of
zero. A rank with a new name sets the first slot. Then all ranks exchange their names, and add up again.

The states of metric objects are merged here. Torchmetrics would wait for all ranks in every object, also in one that
was never updated. Hookline uses its way only for states that cannot be merged; then all ranks must have updated the
object.
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
"""Kinds of metric objects: with states that can be merged, and with states that cannot."""

Key = tuple[str, int | None]
"""A name, and the step if the value was logged with ``step=``."""
Spec = tuple[str, tuple[int, ...]]
"""The reduction (or ``OBJECT`` or ``WHOLE``) and the shape."""


class Sums(NamedTuple):
    """The total of a metric on one rank or on all ranks."""

    spec: Spec
    total: list[float]
    weight: float
    ranks: float = 1.0
    """The number of ranks that have a value."""

    def value(self) -> Any:
        """Return the total as a number or a tensor."""
        shape = self.spec[1]
        return torch.tensor(self.total, dtype=torch.float64).reshape(shape) if shape else self.total[0]


class Reduction:
    """Reduce metrics over the ranks of a run.

    All ranks must make the same calls in the same order.

    Args:
        world: The processes of the run.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.group = world.group
        self._layouts: dict[str, dict[Key, Spec]] = {}
        self._whole: set[str] = set()  # objects of this epoch that all ranks compute together at its end
        self._partial = False  # in this epoch some ranks have not logged some object

    @property
    def broken(self) -> bool:
        """True after a rank has failed: nothing is reduced, and no row is written."""
        return self._world.broken

    @property
    def part(self) -> int:
        """The index of this rank's shard of the data. Several ranks may have the same shard."""
        return self._world.shares[1]

    def note_whole(self, names: Iterable[str]) -> None:
        """Note objects that all ranks compute together when the epoch ends."""
        self._whole.update(names)

    def take_whole(self) -> set[str]:
        """Return the names that ``note_whole`` has noted, and clear them."""
        names, self._whole = self._whole, set()
        return names

    def note_partial(self) -> None:
        """Note that in this epoch some ranks have not logged some object."""
        self._partial = True

    def take_partial(self) -> bool:
        """Return whether ``note_partial`` was called in this epoch, and reset it."""
        partial, self._partial = self._partial, False
        return partial

    def reduce(self, place: str, mine: Mapping[Key, Sums], *, left: bool = False) -> tuple[dict[Key, Sums], bool]:
        """Return the totals of all ranks, and whether any rank has left its evaluation.

        All ranks must call it.

        Args:
            place: Name of the layout: ``"train"`` or the stage of an evaluation.
            mine: The totals of this rank.
            left: True if this rank has left its evaluation.
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
        for key in [key for key in layout if key[1] is not None]:  # The same `step=` is not logged again.
            del layout[key]
        return found, sums[1] > 0

    def _add_up(self, layout: Mapping[Key, Spec], mine: Mapping[Key, Sums], new: bool, left: bool) -> list[float]:
        vector = [float(new), float(left)]
        for key, spec in layout.items():
            part = mine.get(key)
            if part is None or part.spec != spec:
                vector += [0.0] * (_size(spec) + 2)
            elif spec[0] in ("max", "min"):  # The sum only shows NaN. `_add_extremes` reduces the numbers.
                vector += [value if math.isnan(value) else 0.0 for value in part.total] + [part.weight, part.ranks]
            else:
                vector += [*part.total, part.weight, part.ranks]
        sums: list[float] = self.group.total(torch.tensor(vector, dtype=torch.float64)).tolist()
        return sums

    def _settled(self, reduce: str, total: list[float], ranks: float) -> list[float]:
        if reduce == "last":  # the mean over the ranks that have a value
            return [value / ranks for value in total]
        if reduce == "sum":  # Ranks with the same shard of the data have the same value.
            return [value / self._world.copies for value in total]
        return total

    def _add_extremes(self, found: dict[Key, Sums], mine: Mapping[Key, Sums]) -> None:
        """Reduce metrics with ``max`` and ``min``, in a separate collective if there are any."""
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
    """Return the totals of this rank since the last reduction, read in one transfer."""
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
    """Return a weight for each open object of this rank: 1 if it has new states to merge."""
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
    """Give each object the merged states of all ranks. All ranks must call it, after ``reduce``.

    Args:
        objects: The objects of a layer.
        found: The totals of all ranks, which show which ranks have which objects.
        reduction: The reduction over ranks.
        compute_whole: True to compute objects that cannot be merged now. False: at the end of the epoch.
    """
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
    """Return the values of the epoch. All ranks must call it.

    Args:
        objects: The objects of training.
        reduction: The reduction over ranks.
    """
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
        parts: dict[int, Any] = {}  # Ranks with the same shard of the data have the same states.
        for its in said:
            if name in its["states"]:
                parts.setdefault(its["part"], its["states"][name])
        whole: dict[str, Any] = {}
        for states in parts.values():
            whole = merged(series.metric, whole, states) if whole else states
        series.set_merged(whole)


def _give(objects: MetricObjects, names: list[str], reduction: Reduction) -> None:
    """Send the values of objects to the ranks that do not have these objects."""
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
    """Return these rows, and the rows that only other ranks have. All ranks must call it."""
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
