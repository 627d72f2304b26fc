"""The pending values of one metric, and their reduction: sums and weights in float64."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sized
from operator import mul
from typing import Any

import torch
from torch import Tensor

from hookline.errors import MetricError, kind_of
from hookline.records import Value

LARGEST_ARRAY = 10_000
FOLD = 512
"""Number of pending values that are added up, to limit the memory of a long interval."""


Sums = tuple[Any, Any]
"""A total and its weight."""


class Series:
    """The pending values of one metric.

    Args:
        reduce: How values become one: ``"mean"``, ``"sum"``, ``"last"``, ``"max"`` or ``"min"``.
    """

    __slots__ = (
        "agreed_total", "agreed_weight", "folded_total", "folded_weight", "group", "is_direct", "reduce", "shape",
        "values", "weights",
    )  # fmt: skip

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce
        self.group: Group | None = None
        """The group that holds further values, if the metric is logged together with others."""
        self.is_direct = False
        """True if the engine logs the metric. It appends values directly, so the metric is in no group."""
        self.shape: tuple[int, ...] | None = None
        self.values: list[Any] = []
        self.weights: list[Any] = []
        self.folded_total: Any = None
        self.folded_weight: Any = 0.0
        self.agreed_total: Any = None
        """Total of all ranks at the last reduction. Later values are those of this rank."""
        self.agreed_weight: Any = 0.0

    def make_direct(self) -> None:
        """Let the steps of training append to it. No callback logs under its name then."""
        self.is_direct = True

    def add(self, value: Any, weight: Any) -> None:
        """Add a value, after the values that wait in the group."""
        if self.group is not None:
            self.group.spread()
        self.values.append(value)
        self.weights.append(weight)
        if len(self.values) >= FOLD:
            self.fold()

    def add_sums(self, total: Any, weight: Any) -> None:
        """Add the total and the weight of an interval."""
        self.folded_total = total if self.folded_total is None else self.folded_total + total
        self.folded_weight = self.folded_weight + weight

    def declare(self, shape: tuple[int, ...], *, is_direct: bool) -> None:
        """Set the shape of the values, and whether the engine logs them."""
        self.shape, self.is_direct = shape, is_direct

    def join(self, group: Group) -> None:
        """Let a group hold values of this metric."""
        self.group = group

    @property
    def is_empty(self) -> bool:
        return self.agreed_total is None and self.has_no_own

    @property
    def has_no_own(self) -> bool:
        """True if this rank has logged nothing since the last reduction over ranks."""
        return not self.values and self.folded_total is None and (self.group is None or self.group.is_empty)

    def fold(self) -> None:
        """Replace the pending values by their sum, maximum and so on, without waiting for a device."""
        if self.group is not None:
            self.group.spread()
        if not self.values:
            return
        values, weights = self.values, self.weights
        # On the CPU, Python adds numbers in less time than torch needs to start one operation.
        numbers = None if self.shape else _numbers(values)
        counts = None if numbers is None else _numbers(weights)
        if numbers is None or counts is None:
            self._fold_tensors(_stack(values), _stack(weights))
        else:
            self._fold_numbers(numbers, counts)
        self.values.clear()
        self.weights.clear()

    def _fold_numbers(self, values: list[float], weights: list[float]) -> None:
        earlier = [] if self.folded_total is None else [self.folded_total]
        match self.reduce:
            case "mean":
                if 0.0 in weights:  # A value without weight may be NaN, such as a mean over no tokens.
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

    def state_dict(self) -> dict[str, Any]:
        """Return the values of this rank, not added up.

        Saving must not change how sums are rounded. In training, a total of all ranks becomes a row at once, so none is
        pending here.
        """
        if self.group is not None:
            self.group.spread()
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
        self.agreed_total, self.agreed_weight = None, 0.0

    def agree(self, total: Any, weight: Any, shape: tuple[int, ...]) -> None:
        """Replace the values of this rank by those of all ranks since the last reduction.

        Args:
            total: Total of all ranks.
            weight: Weight of the total.
            shape: Shape of the values.
        """
        self.shape = shape
        self._drop_own()
        self.folded_total, self.folded_weight = total, weight
        self.agreed_total, self.agreed_weight = self.sums()
        self.folded_total, self.folded_weight = None, 0.0

    def sums(self) -> Sums:
        """Return the total and its weight: of all ranks, and of this rank since the last reduction."""
        self.fold()
        if self.agreed_total is None:
            return self.folded_total, self.folded_weight
        if self.folded_total is None:
            return self.agreed_total, self.agreed_weight
        match self.reduce:
            case "mean" | "sum":
                return self.agreed_total + self.folded_total, self.agreed_weight + self.folded_weight
            case "last":
                return self.folded_total, self.folded_weight
            case _:
                both = [torch.as_tensor(total).to(torch.float64) for total in (self.agreed_total, self.folded_total)]
                return _extreme(self.reduce, torch.stack(both)), self.folded_weight

    def result(self, before: Sums | None = None) -> Any:
        """Return the reduced value: a number, or a tensor on its device.

        Args:
            before: Total and weight of the interval before, to include in a mean.
        """
        total, weight = self.sums()
        if self.reduce != "mean":
            return total
        if before is not None:
            total, weight = total + before[0], weight + before[1]
        if isinstance(weight, float) and not weight:
            return total * math.nan
        return total / weight

    def clear(self) -> None:
        """Start a new interval, after ``sums`` has added up all values."""
        self.folded_total, self.folded_weight = None, 0.0
        self.agreed_total, self.agreed_weight = None, 0.0

    def drop_pending(self) -> None:
        """Drop all pending values."""
        self._drop_own()
        self.clear()

    def _drop_own(self) -> None:
        if self.group is not None:
            self.group.spread()  # The other metrics of the group keep their values.
        self.values.clear()
        self.weights.clear()
        self.folded_total, self.folded_weight = None, 0.0


class Group:
    """Metrics that are logged together in every step, copied by one operation.

    Args:
        series: The series of the metrics.
    """

    __slots__ = ("rows", "series", "stacks", "weights")

    def __init__(self, series: list[Series]) -> None:
        self.series = series
        self.rows: list[list[float]] = []  # numbers, and values on the CPU
        self.stacks: list[Tensor] = []  # tensors, for values on another device
        self.weights: list[Any] = []
        for member in series:
            member.join(self)

    @property
    def is_empty(self) -> bool:
        return not self.weights

    def add(self, values: tuple[Any, ...], weight: Any) -> bool:
        """Add a copy of all values. Return False without adding any if they are not of one kind."""
        row = _row(values)
        if row is not None and not self.stacks:
            self.rows.append(row)
        else:
            stack = _stacked(values)
            if stack is None or self.rows:
                return False
            self.stacks.append(stack)
        self.weights.append(weight)
        if len(self.weights) >= FOLD:
            self.spread()
        return True

    def spread(self) -> None:
        """Move the values to the series of each metric."""
        if not self.weights:
            return
        columns = zip(*self.rows, strict=True) if self.rows else map(list, torch.stack(self.stacks, 1))
        weights = self.weights.copy()
        for series, column in zip(self.series, list(columns), strict=True):
            series.values.extend(column)
            series.weights.extend(weights)
        self.clear()

    def clear(self) -> None:
        """Drop all values."""
        self.rows.clear()
        self.stacks.clear()
        self.weights.clear()


class EpochSums:
    """The sums of all training metrics over the open epoch. They are equal on all ranks."""

    def __init__(self) -> None:
        self._whole: dict[str, Series] = {}
        self.before: dict[str, Sums] = {}
        """Sums of the last interval of this epoch. A short interval after it is averaged with it."""

    def add(self, interval: Mapping[str, Series]) -> None:
        """Add the series of an interval that ends."""
        self.before = {name: its.sums() for name, its in interval.items() if its.reduce in ("mean", "sum")}
        for name, (total, weight) in self.before.items():
            whole = self._whole.setdefault(name, Series(interval[name].reduce))
            whole.add_sums(total, weight)

    def take(self) -> dict[str, Any]:
        """Return the result of each metric at the end of the epoch, and reset the sums."""
        found = {name: series.result() for name, series in self._whole.items()}
        self._whole, self.before = {}, {}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": {name: s.state_dict() for name, s in self._whole.items()}, "before": dict(self.before)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._whole = {name: Series(its["reduce"]) for name, its in state["epoch"].items()}
        for name, series in self._whole.items():
            series.load_state_dict(state["epoch"][name])
        self.before = {name: (total, weight) for name, (total, weight) in state.get("before", {}).items()}


def _row(values: tuple[Any, ...]) -> list[float] | None:
    """Return numbers, and those of tensors on the CPU, as a list. ``None`` if a value is anything else."""
    row: list[Any] = []
    for value in values:
        if value.__class__ is float:
            row.append(value)
            continue
        if value.__class__ is not Tensor or not value.is_cpu or value.ndim:
            return None
        number: Any = value.tolist()
        if number.__class__ is complex:  # `is_complex()` of the tensor would take half as long as `tolist()`.
            return None
        row.append(number)
    return row


def _stacked(values: tuple[Any, ...]) -> Tensor | None:
    """Return a detached copy of tensors of one kind, on their device. ``None`` if they differ."""
    try:
        dtype = values[0].dtype
        for value in values:
            # A large integer would lose digits among floats. A DTensor needs `full_tensor()`.
            if value.dtype is not dtype or hasattr(value, "full_tensor"):
                return None
        stack = torch.stack(values)
    except (AttributeError, TypeError, RuntimeError):  # not tensors, or several shapes or devices
        return None
    if stack.ndim != 1 or stack.__class__ is not Tensor or stack.is_complex():
        return None
    return stack.detach() if stack.requires_grad else stack


def number_or_copy(value: Tensor) -> float | Tensor:
    """Return a number if the tensor is on the CPU, else a detached copy.

    ``tolist`` reads the memory; ``item`` would be an operation. The copy is needed because ``loss.detach()`` shares its
    memory with the loss, which may change in place.
    """
    if value.is_cpu and value.__class__ is Tensor and not value.ndim and not value.is_complex():
        number: Any = value.tolist()
        return float(number)
    if value.__class__ is not Tensor and hasattr(value, "full_tensor"):  # A DTensor: all ranks gather it.
        spread: Any = value.detach()
        return number_or_copy(spread.full_tensor())
    return value.detach().clone()


def number_or_tensor(name: str, value: Any) -> float | Tensor:
    """Return a value as a number or a detached copy, so that in-place changes do not reach it.

    Args:
        name: Name of the metric, for errors.
        value: A number, a tensor or an array.
    """
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError as error:
            raise MetricError(f"{name}: a number larger than any float cannot be a metric") from error
    if not isinstance(value, Tensor) and hasattr(value, "__array__"):
        try:
            value = torch.as_tensor(value)
        except TypeError as error:
            raise MetricError(f"{name}: {value!r:.80} holds no numbers; log numbers or small arrays") from error
    if isinstance(value, Tensor) and (value.is_meta or value.is_nested or value.layout != torch.strided):
        kind = "on the device meta" if value.is_meta else "nested" if value.is_nested else f"of {value.layout}"
        raise MetricError(f"{name}: a tensor that is {kind} is not a plain array; log numbers or small arrays")
    if not isinstance(value, Tensor) or value.is_complex():
        raise MetricError(
            f"{name}: {value!r:.80} is {kind_of(value)}, not a number; log numbers or small arrays"
            + (", and texts with run.log_text()" if isinstance(value, str) else "")
        )
    if value.ndim != 1 and value.numel() > LARGEST_ARRAY:
        raise MetricError(
            f"{name}: an array of {tuple(value.shape)} is too large for a metric; {LARGEST_ARRAY} values at most"
        )
    return number_or_copy(value)


def step_of(name: str, step: Any) -> int:
    """Return the argument ``step`` as a Python integer, which JSON needs."""
    if isinstance(step, numbers.Integral) and not isinstance(step, bool) and (found := int(step)) >= 0:
        return found
    raise MetricError(f"{name}: step={step!r:.80}; give an integer, 0 or more")


def weight_of(name: str, weight: Any) -> Any:
    """Return the checked weight of a value: a number >= 0, a copy of a tensor, or ``None``."""
    if isinstance(weight, Tensor):
        weight = number_or_copy(weight)
        if isinstance(weight, Tensor):  # A check of its sign would wait for a device.
            return weight
    if weight is None or (isinstance(weight, numbers.Real) and float(weight) >= 0):
        return weight
    if isinstance(weight, Sized) and hasattr(weight, "__array__"):  # a NumPy vector
        return weight_of(name, torch.as_tensor(weight))
    raise MetricError(f"{name}: weight={weight!r:.80}; give how much the value counts, 0 or more, such as len(batch)")


def of_samples(name: str, values: Tensor, weight: Any, reduce: str) -> tuple[Tensor, Any]:
    """Return the reduced value and the weight of a vector, which holds one value per sample.

    Args:
        name: Name of the metric, for errors.
        values: The vector.
        weight: One weight, a vector of weights, or ``None`` for the number of values.
        reduce: How the values become one.
    """
    values = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
    match reduce:
        case "sum":
            return values.sum(), None
        case "last":
            return values[-1], None
        case "max" | "min":
            return _extreme(reduce, values), None
    if isinstance(weight, Tensor) and weight.ndim == 1:
        if weight.shape != values.shape:
            raise MetricError(f"{name}: {len(values)} values with {len(weight)} weights; give one for each")
        weights = weight.to(values)
        total = torch.where(weights == 0, 0.0, values * weights).sum()  # A value without weight may be NaN.
        return total / weights.sum(), weights.sum()
    return values.mean(), len(values) if weight is None else weight


def _numbers(values: list[Any]) -> list[float] | None:
    """Return numbers and tensors with one number as numbers.

    ``None`` if they are not on the CPU.
    """
    kinds = set(map(type, values))  # There may be hundreds of values of few types.
    if kinds == {float}:
        return values
    if not any(issubclass(kind, Tensor) for kind in kinds):
        return list(map(float, values))
    stacked = _stack(values)
    if not stacked.is_cpu:
        return None
    numbers: list[float] = stacked.reshape(-1).tolist()
    return numbers


def _stack(values: list[Any]) -> Tensor:
    """Return numbers and tensors as one float64 tensor, on the device of the tensors."""
    try:
        stacked = torch.stack(values)
    except (TypeError, RuntimeError):  # There are numbers, or tensors on several devices.
        if not any(isinstance(value, Tensor) for value in values):
            return torch.tensor(values, dtype=torch.float64)
        device = next(value.device for value in values if isinstance(value, Tensor))
        exact = torch.float32 if device.type == "mps" else torch.float64
        tensors = [
            v.to(device) if isinstance(v, Tensor) else torch.tensor(v, dtype=exact, device=device) for v in values
        ]
        stacked = torch.stack([v.reshape(()) if v.numel() == 1 else v for v in tensors])
    return stacked if stacked.device.type == "mps" else stacked.to(torch.float64)  # MPS does not support float64.


def _extreme(reduce: str, values: Tensor) -> Tensor:
    return torch.amax(values, 0) if reduce == "max" else torch.amin(values, 0)


def to_python(results: list[Any]) -> list[Value]:
    """Read all results, in one transfer per device."""
    values: list[Value] = list(results)
    by_device: dict[torch.device, list[int]] = {}
    for index, result in enumerate(results):
        if isinstance(result, Tensor):
            by_device.setdefault(result.device, []).append(index)
    for indices in by_device.values():
        flat = torch.cat([results[index].reshape(-1) for index in indices]).cpu()  # This waits for the device.
        parts = torch.split(flat, [results[index].numel() for index in indices])
        for index, part in zip(indices, parts, strict=True):
            values[index] = part.reshape(results[index].shape).tolist()
    return values
