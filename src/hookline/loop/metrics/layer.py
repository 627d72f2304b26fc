"""One layer of the metric book: the pending values of training or of one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.errors import MetricError
from hookline.loop.metrics.objects import MetricObjects, Values
from hookline.loop.metrics.over_ranks import (
    OBJECT,
    WHOLE,
    Key,
    Reduction,
    agree_on_objects,
    object_sums,
    own_sums,
)
from hookline.loop.metrics.series import Series, Sums, to_python
from hookline.records import Value


class Layer:
    """The series and metric objects of a layer, by name.

    Args:
        objects: The metric objects of the layer.
    """

    __slots__ = ("dated", "objects", "series")

    def __init__(self, objects: MetricObjects) -> None:
        self.objects = objects
        self.series: dict[str, Series] = {}
        self.dated: dict[tuple[str, int], Series] = {}
        """Values that were logged with ``step=``, by name and step."""

    def pending(self) -> dict[str, Series]:
        """Return the series that have values."""
        return {name: series for name, series in self.series.items() if not series.is_empty}

    def read(
        self, pending: Mapping[str, Series], objects: Values, before: Mapping[str, Sums]
    ) -> tuple[dict[str, Value], dict[tuple[str, int], Value]]:
        """Read all values in one transfer.

        Args:
            pending: The series to read.
            objects: The results of metric objects.
            before: Sums of the interval before, which are included in means.

        Returns:
            Values by name, and the values that were logged with ``step=`` by name and step.
        """
        numbers = [series.result(before.get(name)) for name, series in pending.items()]
        numbers += [series.result() for series in self.dated.values()]
        values = iter(to_python([*numbers, *objects.values()]))
        rows = {name: next(values) for name in pending}
        dated = {key: next(values) for key in self.dated}
        return {**rows, **dict(zip(objects, values, strict=True))}, dated

    @property
    def has_own(self) -> bool:
        """True if there are pending values that this rank has logged."""
        if self.dated or any(not series.has_no_own for series in self.series.values()):
            return True
        return any(series.noted for series in self.objects.series.values())

    def drop_pending(self) -> None:
        """Drop all pending values. Metric objects stay unchanged."""
        for series in self.series.values():
            series.drop_pending()
        self.dated.clear()

    def agree(self, reduction: Reduction, place: str, *, left: bool, of_epoch: bool) -> bool:
        """Reduce the values that were logged since the last call over all ranks.

        All ranks must call it.

        Args:
            reduction: The reduction over ranks.
            place: Name of the layout: ``"train"`` or the stage of an evaluation.
            left: True if this rank has left its evaluation.
            of_epoch: True if the values count in the mean of the epoch.

        Returns:
            True if any rank has left its evaluation.
        """
        own: dict[Key, Series] = {(name, None): series for name, series in self.series.items()}
        own.update(self.dated.items())
        found, left = reduction.reduce(place, own_sums(own) | object_sums(self.objects), left=left)
        for (name, step), sums in found.items():
            reduce, shape = sums.spec
            if reduce in (OBJECT, WHOLE):
                continue
            if step is None:
                series = opened(self.series, name, name, reduce)
            else:
                series = opened(self.dated, (name, step), name, reduce)
            series.agree(sums.value(), sums.weight if reduce == "mean" else 0.0, shape)
        agree_on_objects(self.objects, found, reduction, compute_whole=not of_epoch)
        return left


def opened(layer: dict[Any, Series], key: Any, name: str, reduce: str) -> Series:
    """Return a series of a layer, and create it if there is none.

    Args:
        layer: The series by key.
        key: The name, or the name and the step.
        name: The name, for the error.
        reduce: How values become one. It must be the same each time.
    """
    series = layer.get(key)
    if series is None:
        series = layer[key] = Series(reduce)
    elif series.reduce != reduce:
        raise MetricError(f"{name} is logged with reduce={reduce!r} and with reduce={series.reduce!r}; use one of them")
    return series
