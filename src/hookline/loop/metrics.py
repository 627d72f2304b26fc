"""The metric book: values stay tensors until their interval ends, then leave in one transfer.

Every metric is a sum and a weight, in float64. ``log`` keeps a detached copy and its weight; nothing
is read from the device before the interval ends, unless somebody reads ``run.metrics``.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from operator import mul
from typing import Any

import torch
from torch import Tensor

from hookline.errors import MetricError
from hookline.records import Kind, MetricRow, Value
from hookline.run.history import unknown_metric
from hookline.run.state import MISSING, RunState

REDUCTIONS = ("mean", "sum", "last", "max", "min")
LARGEST_ARRAY = 10_000
FOLD = 512
"""So many pending values are folded into one, to bound memory when an interval is long."""


class Series:
    """The pending values of one metric."""

    __slots__ = ("folded_total", "folded_weight", "reduce", "shape", "values", "weights")

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce
        self.shape: tuple[int, ...] | None = None
        self.values: list[Any] = []
        self.weights: list[Any] = []
        self.folded_total: Any = None
        self.folded_weight: Any = 0.0

    def fold(self) -> None:
        """Replace the pending values by their sum, maximum, … On an accelerator this reads nothing from it."""
        if not self.values:
            return
        values, weights = self.values, self.weights
        if set(map(type, values)) == {float}:
            self._fold_numbers(values, list(map(float, weights)))
        elif all(v.__class__ is float or v.is_cpu for v in values) and not self.shape:
            # On the CPU a number is read faster than an operation starts.
            numbers = [v if v.__class__ is float else v.item() for v in values]
            self._fold_numbers(numbers, list(map(float, weights)))
        else:
            self._fold_tensors(_stack(values), _stack(weights))
        self.values.clear()
        self.weights.clear()

    def _fold_numbers(self, values: list[float], weights: list[float]) -> None:
        earlier = [] if self.folded_total is None else [self.folded_total]
        match self.reduce:
            case "mean":
                if 0.0 in weights:  # what counts nothing may be NaN: the mean over no tokens
                    values = [value if weight else 0.0 for value, weight in zip(values, weights, strict=True)]
                self.folded_total = sum(map(mul, values, weights), *earlier)
                self.folded_weight = sum(weights, self.folded_weight)
            case "sum":
                self.folded_total = sum(values, *earlier)
            case "last":
                self.folded_total = values[-1]
            case "max" | "min":
                self.folded_total = _extreme(self.reduce, torch.tensor([*earlier, *values], dtype=torch.float64))

    def _fold_tensors(self, values: Tensor, weights: Tensor) -> None:
        earlier = self.folded_total
        match self.reduce:
            case "mean":
                shape = (-1,) + (1,) * (values.ndim - 1)
                counts = weights.reshape(shape).to(values.device)
                total = torch.where(counts == 0, 0.0, values * counts).sum(0)
                self.folded_total = total if earlier is None else earlier + total
                self.folded_weight = self.folded_weight + weights.sum()
            case "sum":
                total = values.sum(0)
                self.folded_total = total if earlier is None else earlier + total
            case "last":
                self.folded_total = values[-1]
            case "max" | "min":
                stacked = values if earlier is None else torch.cat([torch.as_tensor(earlier).to(values)[None], values])
                self.folded_total = _extreme(self.reduce, stacked)

    def keep_own(self) -> None:
        """The newest value is about to be given to someone who may change it in place."""
        if self.values and isinstance(self.values[-1], Tensor):
            self.values[-1] = self.values[-1].clone()

    def state_dict(self) -> dict[str, Any]:
        """As it is, not folded: whether a checkpoint was saved must not change how sums are rounded."""
        values = [float(v) if isinstance(v, Tensor) and v.is_cpu and not v.ndim else v for v in self.values]
        return {
            "reduce": self.reduce,
            "shape": self.shape,
            "values": values,
            "weights": [float(w) if isinstance(w, Tensor) else w for w in self.weights],
            "total": self.folded_total,
            "weight": self.folded_weight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reduce, self.shape = state["reduce"], state["shape"]
        self.values[:], self.weights[:] = state["values"], state["weights"]
        self.folded_total, self.folded_weight = state["total"], state["weight"]

    def result(self) -> Any:
        """The reduced value: a number, or a tensor that is still on its device."""
        self.fold()
        if self.reduce != "mean":
            return self.folded_total
        if isinstance(self.folded_weight, float) and not self.folded_weight:
            return self.folded_total * math.nan
        return self.folded_total / self.folded_weight


class MetricBook:
    """Where ``run.log`` writes: one layer for training, and one for each evaluation that is open."""

    def __init__(self, state: RunState, write: Callable[[list[MetricRow]], None]) -> None:
        self._state = state
        self._write = write
        self._layers: list[dict[str, Series]] = [{}]
        self._epoch: dict[str, Series] = {}
        self._newest: dict[str, Value] = {}
        self._measured: dict[str, int] = {}  # at which step
        self._full_names: dict[tuple[str, Any, str], str] = {}

    # -- writing -------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], weight: Any, reduce: str) -> None:
        if reduce not in REDUCTIONS:
            raise MetricError(f"reduce={reduce!r}: use one of {', '.join(REDUCTIONS)}")
        for name, value in values.items():
            self._add(self._full_name(name), value, weight, reduce)

    def _add(self, name: str, value: Any, weight: Any, reduce: str) -> None:
        value = _number_or_tensor(name, value)
        weight = _weight(name, weight)
        if isinstance(value, Tensor) and value.ndim == 1:
            if not len(value):
                return
            value, weight = _of_samples(name, value, weight, reduce)
        elif isinstance(weight, Tensor) and weight.numel() != 1:
            raise MetricError(
                f"{name}: {weight.numel()} weights for one value; a vector of weights needs a vector of values"
            )
        series = self.series(name, reduce)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        if series.shape is None:
            series.shape = shape
        elif series.shape != shape:
            raise MetricError(f"{name}: logged with the shape {shape} and before with {series.shape}; keep to one")
        series.values.append(value)
        series.weights.append(1.0 if weight is None else weight)
        if len(series.values) >= FOLD:
            series.fold()

    def series(self, name: str, reduce: str = "mean") -> Series:
        """The open series of a metric in the innermost layer."""
        layer = self._layers[-1]
        series = layer.get(name)
        if series is None:
            series = layer[name] = Series(reduce)
        elif series.reduce != reduce:
            raise MetricError(
                f"{name} is logged with reduce={reduce!r} and with reduce={series.reduce!r}; use one of them"
            )
        return series

    def _full_name(self, name: str) -> str:
        state = self._state
        key = (state.stage, state.loader_name, name)
        full = self._full_names.get(key)
        if full is None:
            if not isinstance(name, str) or not name:
                raise MetricError(f"a metric's name must be a text, not {name!r}")
            loader = "" if state.loader_name in (MISSING, None) else f"{state.loader_name}/"
            full = name if "/" in name else f"{state.stage}/{loader}{name}"
            self._full_names[key] = full
        return full

    # -- reading -------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """The newest value: what is pending in the innermost layer that has it, else the last row."""
        for layer in reversed(self._layers):
            series = layer.get(name)
            if series is not None and (series.values or series.folded_total is not None):
                return _to_python([series.result()])[0]
        if name not in self._newest:
            raise unknown_metric(name, list(self.names()))
        return self._newest[name]

    def names(self) -> Iterator[str]:
        seen = dict.fromkeys(self._newest)
        for layer in self._layers:
            seen.update(dict.fromkeys(name for name, s in layer.items() if s.values or s.folded_total is not None))
        return iter(seen)

    def measured_now(self) -> dict[str, float]:
        """The numbers that were measured at this very step."""
        step = self._state.clock.step
        return {
            name: value
            for name, value in self._newest.items()
            if isinstance(value, int | float) and self._measured.get(name) == step
        }

    def state_dict(self) -> dict[str, Any]:
        """What is pending in training, the open epoch, and the newest values."""
        return {
            "pending": {name: s.state_dict() for name, s in self._layers[0].items()},
            "epoch": {name: s.state_dict() for name, s in self._epoch.items()},
            "newest": dict(self._newest),
            "measured": dict(self._measured),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = {}
        for series, saved in ((self._layers[0], state["pending"]), (self._epoch, state["epoch"])):
            for name, its in saved.items():  # in place: the engine holds the series of the loss
                series.setdefault(name, Series(its["reduce"])).load_state_dict(its)
        self._newest, self._measured = dict(state["newest"]), dict(state["measured"])

    # -- intervals and evaluations ---------------------------------------------------------------

    def fold(self) -> None:
        """Bound the memory of a long interval."""
        for series in self._layers[0].values():
            if len(series.values) >= FOLD // 2:
                series.fold()

    def end_interval(self, *, of_epoch: bool = True) -> bool:
        """Close the interval of training: one transfer, then rows. Whether there was anything.

        What is logged after the end of an epoch belongs to no epoch's mean.
        """
        layer = self._layers[0]
        pending = {name: s for name, s in layer.items() if s.values or s.folded_total is not None}
        if not pending:
            return False
        values = _to_python([series.result() for series in pending.values()])
        for name, series in pending.items():
            if of_epoch and series.reduce in ("mean", "sum"):
                self._add_to_epoch(name, series)
            series.folded_total, series.folded_weight = None, 0.0
        self._record(dict(zip(pending, values, strict=True)), "step")
        return True

    def _add_to_epoch(self, name: str, series: Series) -> None:
        epoch = self._epoch.setdefault(name, Series(series.reduce))
        epoch.folded_total = (
            series.folded_total if epoch.folded_total is None else epoch.folded_total + series.folded_total
        )
        epoch.folded_weight = epoch.folded_weight + series.folded_weight

    def end_epoch(self) -> None:
        """Close the epoch: each averaged metric once more, over the whole epoch, as ``<name>_epoch``."""
        self.end_interval()
        if self._epoch:
            values = _to_python([series.result() for series in self._epoch.values()])
            self._record({f"{name}_epoch": value for name, value in zip(self._epoch, values, strict=True)}, "epoch")
            self._epoch = {}

    def open_layer(self) -> int:
        """Open one; the depth below it, for ``drop_layers``."""
        self._layers.append({})
        return len(self._layers) - 1

    def drop_layers(self, depth: int) -> None:
        """After an error: nothing that was logged since counts."""
        del self._layers[depth:]

    def detach_layer(self) -> dict[str, Series]:
        """Take an open layer away, to be attached again when it is known what becomes of it."""
        return self._layers.pop()

    def attach_layer(self, layer: dict[str, Series]) -> None:
        self._layers.append(layer)

    def close_layer(self, *, keep: bool) -> dict[str, Value]:
        """Close an evaluation: its metrics, recorded as rows or, for one that leaves no trace, not."""
        layer = {name: s for name, s in self._layers.pop().items() if s.values or s.folded_total is not None}
        metrics = dict(zip(layer, _to_python([series.result() for series in layer.values()]), strict=True))
        if keep:
            self._record(metrics, "eval")
        return metrics

    def _record(self, metrics: Mapping[str, Value], kind: Kind) -> None:
        clock = self._state.clock
        now = clock.seconds
        rows = [MetricRow(name, clock.step, clock.epoch, value, kind, now) for name, value in metrics.items()]
        self._newest.update(metrics)
        self._measured.update(dict.fromkeys(metrics, clock.step))
        if self._state.entry_point in ("fit", "train"):
            for row in rows:
                self._state.history.record(row)
            self._write(rows)


def _number_or_tensor(name: str, value: Any) -> float | Tensor:
    """A number, or a detached copy: a tensor that is changed in place later must not change the row."""
    if isinstance(value, numbers.Real):
        return float(value)
    if not isinstance(value, Tensor) and hasattr(value, "__array__"):
        try:
            value = torch.as_tensor(value)
        except TypeError as error:
            raise MetricError(f"{name}: {value!r:.80} holds no numbers; log numbers or small arrays") from error
    if not isinstance(value, Tensor) or value.is_complex():
        raise MetricError(
            f"{name}: {value!r:.80} is a {type(value).__name__}, not a number; log numbers or small arrays"
        )
    if value.ndim != 1 and value.numel() > LARGEST_ARRAY:
        raise MetricError(
            f"{name}: an array of {tuple(value.shape)} is too large for a metric; {LARGEST_ARRAY} values at most"
        )
    return value.detach().clone()


def _weight(name: str, weight: Any) -> Any:
    """How much a value counts: a number that is not negative, or a copy of a tensor."""
    if isinstance(weight, Tensor):
        return weight.detach().clone()
    if weight is None or (isinstance(weight, numbers.Real) and float(weight) >= 0):
        return weight
    raise MetricError(f"{name}: weight={weight!r:.80}; give how much the value counts, 0 or more, such as len(batch)")


def _of_samples(name: str, values: Tensor, weight: Any, reduce: str) -> tuple[Tensor, Any]:
    """A vector is one value per sample: what they come to, and with which weight."""
    values = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
    match reduce:
        case "sum":
            return values.sum(), weight
        case "last":
            return values[-1], weight
        case "max" | "min":
            return _extreme(reduce, values), weight
    if isinstance(weight, Tensor) and weight.ndim == 1:
        if weight.shape != values.shape:
            raise MetricError(f"{name}: {len(values)} values with {len(weight)} weights; give one for each")
        weights = weight.to(values)
        return (values * weights).sum() / weights.sum(), weights.sum()
    return values.mean(), len(values) if weight is None else weight


def _stack(values: list[Any]) -> Tensor:
    """Numbers and tensors as one float64 tensor, on the device of the tensors."""
    if not any(isinstance(value, Tensor) for value in values):
        return torch.tensor(values, dtype=torch.float64)
    try:
        stacked = torch.stack(values)
    except (TypeError, RuntimeError):  # numbers among tensors, or several devices
        device = next(value.device for value in values if isinstance(value, Tensor))
        stacked = torch.stack([torch.as_tensor(value, device=device) for value in values])
    return stacked if stacked.device.type == "mps" else stacked.to(torch.float64)  # MPS has no float64


def _extreme(reduce: str, values: Tensor) -> Tensor:
    return torch.amax(values, 0) if reduce == "max" else torch.amin(values, 0)


def _to_python(results: list[Any]) -> list[Value]:
    """Read all results, in one transfer per device."""
    values: list[Value] = list(results)
    by_device: dict[torch.device, list[int]] = {}
    for index, result in enumerate(results):
        if isinstance(result, Tensor):
            by_device.setdefault(result.device, []).append(index)
    for indices in by_device.values():
        flat = torch.cat([results[index].reshape(-1) for index in indices]).cpu()  # the sync point
        parts = torch.split(flat, [results[index].numel() for index in indices])
        for index, part in zip(indices, parts, strict=True):
            values[index] = part.reshape(results[index].shape).tolist()
    return values
