"""The metric book: values stay tensors until their interval ends.

Every metric is a sum and a weight in float64. ``log`` keeps a detached copy and its weight. All values are
read in one transfer when the interval ends, or earlier if a callback reads ``run.metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookline.errors import MetricError
from hookline.loop.metrics.layer import Layer, opened
from hookline.loop.metrics.object_states import is_metric_object
from hookline.loop.metrics.objects import MetricObjects, Tolerates, Values
from hookline.loop.metrics.over_ranks import Reduction, end_epoch
from hookline.loop.metrics.rows import MetricNames, MetricRows
from hookline.loop.metrics.series import (
    FOLD,
    EpochSums,
    Group,
    Series,
    number_or_copy,
    number_or_tensor,
    of_samples,
    step_of,
    to_python,
    weight_of,
)
from hookline.loop.world.world import World
from hookline.records import MetricRow, Value
from hookline.records.redact import whole_text
from hookline.run.history import unknown_metric
from hookline.run.state import MISSING, RunState

if TYPE_CHECKING:
    from hookline.run import Run

REDUCTIONS = ("mean", "sum", "last", "max", "min")


class MetricBook:
    """Collect what ``run.log`` logs, in one layer for training and one for each open evaluation.

    Args:
        state: The state of the run.
        world: The processes of the run.
        write: Writes rows to the record of the run.
    """

    def __init__(self, state: RunState, world: World, write: Callable[[list[MetricRow]], None]) -> None:
        self._state, self._world = state, world
        self._layers: list[Layer] = [Layer(MetricObjects())]
        self._names = MetricNames()
        self._rows = MetricRows(state, self._names, write)
        self._groups: dict[tuple[str, ...], Group] = {}
        self._epoch = EpochSums()
        self._kinds: dict[str, str] = {}
        self._full_names: dict[tuple[str, Any, str], str] = {}
        self._muted: MetricObjects | None = None
        self._reduction: Reduction | None = None

    # -- writing -------------------------------------------------------------------------------

    def log(
        self, values: Mapping[str, Any], weight: Any, reduce: str, step: int | None = None, by: Run | None = None
    ) -> None:
        """Log metrics.

        Args:
            values: Numbers, small arrays or metric objects by name; or a metric collection.
            weight: Weight of the values in a mean. ``None`` for 1, or for the number of values in a vector.
            reduce: How values become one: ``"mean"``, ``"sum"``, ``"last"``, ``"max"`` or ``"min"``.
            step: Step of the row. ``None``: the step at which the interval ends.
            by: The ``run`` of the callback that logs.
        """
        if self._muted is not None:
            self._note_unheard(values, step, by)
            return
        if values.__class__ is not dict and is_metric_object(values):
            self._note_all(values, step, by)
            return
        if step is None and len(self._layers) == 1 and len(values) > 1:
            group = self._groups.get((self._state.stage, *values))
            if group is not None and group.series[0].reduce == reduce and weight.__class__ is not Tensor:
                checked = 1.0 if weight is None else weight_of("the metrics", weight)
                if group.add(tuple(values.values()), checked):
                    return
        if reduce not in REDUCTIONS:
            raise MetricError(f"reduce={reduce!r}: use one of {', '.join(REDUCTIONS)}")
        for name, value in values.items():
            if isinstance(value, nn.Module) and is_metric_object(value):
                self._note(name, value, step, by)
            else:
                self._add(self.full_name(name), value, weight, reduce, step)
        if step is None and len(self._layers) == 1 and len(values) > 1:
            self._group(values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Set metrics of this interval to these values, and drop the values that were logged before."""
        self._groups.clear()
        self._rows.measured.clear()  # The same metric may be set several times at one step.
        for name in values:
            self._layers[-1].series.pop(self.full_name(name), None)
        self.log(values, None, "mean")

    def log_loss(self, value: Any, weight: Any) -> None:
        """Log the loss of a batch in an evaluation. Callbacks cannot log under its name."""
        if self._muted is not None:
            return
        name = self.full_name("loss")
        series = self._layers[-1].series.get(name)
        is_usual = value.__class__ is Tensor and not value.ndim and weight.__class__ is int and weight >= 0
        if is_usual and series is not None and series.is_direct and not series.shape:  # The first value was checked.
            series.add(number_or_copy(value), weight)
        else:
            self._add(name, value, weight, "mean", None, of_loop=True)

    @property
    def muted(self) -> bool:
        """True in a padding batch, which this rank computes only because other ranks have a batch.

        The book ignores its values, and restores metric objects after it.
        """
        return self._muted is not None

    def mute(self) -> None:
        """Ignore logged values until ``unmute``."""
        if self._muted is None:
            self._muted = self._layers[-1].objects
            self._muted.mute(self._state.module)

    def unmute(self) -> None:
        """Stop ignoring logged values, and restore the metric objects to their earlier states."""
        if self._muted is not None:
            self._muted.unmute()
            self._muted = None

    def _note_unheard(self, values: Mapping[str, Any], step: int | None, by: Run | None) -> None:
        """Note the metric objects of a padding batch, to merge the states of other ranks into them."""
        if values.__class__ is not dict and is_metric_object(values):
            self._note_all(values, step, by)
            return
        for name, value in values.items():
            if isinstance(value, nn.Module) and is_metric_object(value):
                self._note(name, value, step, by)

    def _note(self, name: str, metric: Any, step: int | None, by: Run | None) -> None:
        """Note a torchmetrics object. It is computed when the interval or the evaluation ends."""
        full = self.full_name(name)
        if step is not None:
            raise MetricError(f"{full}: a metric object is computed at the end of its interval; leave step= out")
        self.claim(full, "a metric object")
        of_loader = "/" not in name and self._state.loader_name not in (MISSING, None)
        self._layers[-1].objects.note(full, metric, of_loader=of_loader, tolerates=self._tolerance(by))

    def _note_all(self, collection: Any, step: int | None, by: Run | None) -> None:
        """Note a collection that was logged without a name, with ``run.log(collection)``."""
        prefix = self.full_name("all")[:-3]
        if step is not None or not hasattr(collection, "keys"):
            raise MetricError(f"run.log({type(collection).__name__}): give it a name, and no step: {{'acc': metric}}")
        of_loader = prefix.count("/") > 1
        self._layers[-1].objects.note(prefix, collection, of_loader=of_loader, tolerates=self._tolerance(by))

    def _tolerance(self, by: Run | None) -> Tolerates | None:
        """Return how errors of an object are handled: as errors of the callback that logged it."""
        if by is None or not by.member.optional:
            return None
        return partial(self._state.line.tolerates, by, "compute")

    def _claimed(self, rows: Values) -> Values:
        """Claim the names of the rows of metric objects, so that no number is logged under them."""
        for name in rows:
            self.claim(name, "a metric object")
        return rows

    def _add(self, name: str, value: Any, weight: Any, reduce: str, step: int | None, *, of_loop: bool = False) -> None:
        value = number_or_tensor(name, value)
        weight = weight_of(name, weight)
        if isinstance(value, Tensor) and value.ndim == 1:
            if not len(value):
                return
            value, weight = of_samples(name, value, weight, reduce)
        elif isinstance(weight, Tensor) and weight.numel() != 1:
            raise MetricError(
                f"{name}: {weight.numel()} weights for one value; a vector of weights needs a vector of values"
            )
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        self.claim(name, f"an array of the shape {shape}" if shape else "a number")
        series = self.series(name, reduce) if step is None else self._dated(name, reduce, step)
        if series.is_direct != of_loop and not (of_loop and series.has_no_own):
            raise MetricError(
                f"{name}: the loop logs the loss that is returned under this name, with its weight; leave it out of "
                f"run.log, or give yours another name"
            )
        series.declare(shape, is_direct=of_loop)
        series.add(value, 1.0 if weight is None else weight)

    def series(self, name: str, reduce: str = "mean") -> Series:
        """Return the series of a metric in the innermost layer, and create it if there is none."""
        return opened(self._layers[-1].series, name, name, reduce)

    def direct_series(self, name: str) -> Series:
        """The series of a loss, to which the steps append directly: no callback logs under its name."""
        series = self.series(name)
        series.make_direct()
        return series

    def _dated(self, name: str, reduce: str, step: Any) -> Series:
        step = step_of(name, step)
        last = self._rows.measured.get(self._names.shown(name)[0])
        if last is not None and step <= last:
            raise MetricError(
                f"{name}: step={step} comes after a row of step {last}; the steps of one metric only grow"
            )
        return opened(self._layers[-1].dated, (name, step), name, reduce)

    def _group(self, values: Mapping[str, Any]) -> None:
        """Group metrics that are logged together, because they probably will be again."""
        key = (self._state.stage, *values)
        found = [self._layers[0].series.get(self.full_name(name)) for name in values]
        members = [series for series in found if series is not None]
        if len(members) < len(values) or len({series.reduce for series in members}) > 1 or members[0].reduce == "last":
            return
        for series in members:
            # In another group, or logged by the engine, values would not keep the order in which they were logged.
            if series.group is not None or series.shape or series.is_direct:
                return
        self._groups[key] = Group(members)

    def claim(self, name: str, kind: str) -> None:
        """Raise an error if a name was used for another kind of value.

        Args:
            name: Full name.
            kind: The kind of value in words, such as ``"a number"`` or ``"an image"``.
        """
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise MetricError(f"{name}: {kind} is logged, and before it was {known}; give one of them another name")

    def full_name(self, name: str) -> str:
        """Return the name with the prefix of the stage, unless it has a prefix."""
        state = self._state
        key = (state.stage, state.loader_name, name)
        full = self._full_names.get(key)
        if full is None:
            if not isinstance(name, str) or not name:
                raise MetricError(f"a metric's name must be a text, not {name!r}")
            loader = "" if state.loader_name in (MISSING, None) else f"{state.loader_name}/"
            full = whole_text(name if "/" in name else f"{state.stage}/{loader}{name}")
            self._full_names[key] = full
        return full

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        """Show a metric under another full name from now on.

        Args:
            old: Current full name.
            new: New full name.
            keep: True to show the metric under both names.
        """
        self._names.rename(old, new, keep=keep)

    def clear_names(self) -> None:
        """Drop all renames: the callbacks of a new run rename again."""
        self._names.clear()

    # -- reading -------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """Return the newest value: pending in the innermost layer that has one, or of the last row."""
        inner = self._names.inner(name)
        for layer in () if self._names.is_hidden(name) else reversed(self._layers):
            if self._reduction is not None and layer is self._layers[0] and name in self._rows.newest:
                break  # The pending value differs between ranks, and they must decide by the same number.
            series = layer.series.get(inner)
            if series is not None and not series.is_empty:
                return to_python([series.result()])[0]
            found = layer.objects.value(inner)
            if found is not None:
                return to_python([found])[0]
        if name not in self._rows.newest:
            raise unknown_metric(name, list(self.names()))
        return self._rows.newest[name]

    def names(self) -> Iterator[str]:
        """Iterate over the names of all metrics that have a value."""
        seen = dict.fromkeys(self._rows.newest)
        for layer in self._layers:
            for name in (*layer.pending(), *layer.objects.names()):
                seen.update(dict.fromkeys(self._names.shown(name)))
        return iter(seen)

    @property
    def newest(self) -> Mapping[str, Value]:
        """The value of the last row of each metric. Pending values are not read."""
        return self._rows.newest

    def inner_name(self, name: str) -> str:
        """Return the name under which a metric is logged, which may have been renamed to this name."""
        return self._names.inner(name)

    def measured_at(self, name: str) -> int | None:
        """Return the step of the newest value: the current step if a value is pending."""
        inner = self._names.inner(name)
        is_pending = any(inner in layer.pending() or inner in layer.objects.names() for layer in self._layers)
        return self._state.clock.step if is_pending else self._rows.measured.get(name)

    def measured_now(self, *, pending: bool = False) -> dict[str, float]:
        """Return the numbers that were measured at the current step, also in an open evaluation.

        Args:
            pending: True to include values that were logged since the last training interval ended.
        """
        step = self._state.clock.step
        found = {name: value for name, value in self._rows.newest.items() if self._rows.measured.get(name) == step}
        for layer in self._layers[0 if pending else 1 :]:
            for inner in (*layer.pending(), *layer.objects.names()):
                found.update({name: self.value(name) for name in self._names.shown(inner)})
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    def state_dict(self, paths: Mapping[int, str] | None = None) -> dict[str, Any]:
        """Return the pending values of training, the sums of the open epoch, and the newest values.

        Args:
            paths: Paths by ``id`` of the metric objects that a module or callback saves.
        """
        return {
            "objects": self._layers[0].objects.state_dict(paths or {}),
            "pending": {name: s.state_dict() for name, s in self._layers[0].series.items()},
            "dated": [(name, step, s.state_dict()) for (name, step), s in self._layers[0].dated.items()],
            **self._epoch.state_dict(),
            **self._rows.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any] | None = None) -> None:
        """Load the state of ``state_dict``.

        Args:
            state: The state.
            by_path: Metric objects that a module or callback has loaded, by path.
        """
        self._epoch.load_state_dict(state)
        self._layers[0].objects.load_state_dict(state.get("objects", {}), by_path or {})
        for name, its in state["pending"].items():  # Load in place: the engine holds the series of the loss.
            self._layers[0].series.setdefault(name, Series(its["reduce"])).load_state_dict(its)
        for name, step, its in state.get("dated", ()):
            self._layers[0].dated[name, step] = Series(its["reduce"])
            self._layers[0].dated[name, step].load_state_dict(its)
        self._rows.load_state_dict(state)

    def go_back(self, state: Mapping[str, Any], by_path: Mapping[str, Any], *, same_epoch: bool) -> None:
        """Restore the pending values after a rollback, unless their epoch is over.

        Args:
            state: The state at the step to which the run returns.
            by_path: Metric objects that a module or callback has loaded, by path.
            same_epoch: True if that step is in the current epoch.
        """
        self._layers[0].drop_pending()
        self._layers[0].objects.go_back(state.get("objects", {}), by_path, same_epoch=same_epoch)
        over: dict[str, Any] = (
            {} if same_epoch else {"objects": {}, "pending": {}, "dated": [], "epoch": {}, "before": {}}
        )
        self.load_state_dict({**state, **over}, by_path)

    # -- over ranks ----------------------------------------------------------------------------

    def join(self) -> None:
        """Reduce metrics over all ranks while the world is open. Otherwise use this process only."""
        self._reduction = None if self._world.is_alone or not self._world.is_open else Reduction(self._world)
        self.unmute()

    @property
    def has_pending(self) -> bool:
        """True if this rank has logged a value in training since the last row."""
        return self._layers[0].has_own

    def agree(self, *, left: bool = False, of_epoch: bool = False, depth: int = -1) -> bool:
        """Reduce the values that were logged since the last call over all ranks.

        All ranks must call it: at the end of an interval, at the end of an evaluation or prediction, and before
        ``eval_loader_end`` and ``eval_end``, so that monitors see the value of all ranks.

        Args:
            left: True if this rank has left its evaluation.
            of_epoch: True if the values count in the mean of the epoch.
            depth: Index of the layer.

        Returns:
            True if any rank has left its evaluation.
        """
        reduction, layer = self._reduction, self._layers[depth]
        if reduction is None or reduction.broken:
            return left
        place = "train" if layer is self._layers[0] else self._state.stage
        return layer.agree(reduction, place, left=left, of_epoch=of_epoch)

    # -- intervals and evaluations ---------------------------------------------------------------

    def fold(self) -> None:
        """Add up pending values, to limit the memory of a long interval."""
        for series in self._layers[0].series.values():
            if len(series.values) >= FOLD // 2:
                series.fold()

    def end_interval(self, *, of_epoch: bool = True, widened: bool = False) -> bool:
        """End the interval of training: read all values in one transfer, and write rows.

        Args:
            of_epoch: True if the values count in the mean of the epoch. Values that are logged after its end do not.
            widened: True if the interval is short. Then its means include the interval before, if that is in the same
                epoch.

        Returns:
            True if there was a value.
        """
        if self._reduction is not None and self._reduction.broken:
            self._layers[0].drop_pending()  # A row must hold the values of all ranks.
            return False
        self.agree(of_epoch=of_epoch, depth=0)
        layer = self._layers[0]
        objects = self._claimed(layer.objects.end_interval(of_epoch=of_epoch))
        pending = layer.pending()
        rows, dated = layer.read(pending, objects, self._epoch.before if widened else {})
        if of_epoch:
            self._epoch.add(pending)
        for series in pending.values():
            series.clear()
        layer.dated.clear()
        self._rows.record(self._names.rows(rows), "step")
        self._rows.record_dated(dated, "step")
        return bool(rows or dated)

    def end_epoch(self) -> None:
        """End the epoch: write each metric averaged over the epoch, as ``<name>_epoch``."""
        if self._reduction is None:
            self.end_interval()
            objects = self._layers[0].objects.end_epoch()
        else:  # All ranks have just ended the interval. Its sums are those of all ranks.
            objects = end_epoch(self._layers[0].objects, self._reduction)
        found = {**self._epoch.take(), **objects}
        if found:
            rows = dict(zip(found, to_python(list(found.values())), strict=True))
            self._rows.record(self._names.rows(rows, "_epoch"), "epoch")

    def open_layer(self, module: nn.Module | None = None) -> int:
        """Open a layer for an evaluation, and return the depth below it, for ``drop_layers``.

        Metric objects that were logged before are reset in the layer, and restored after it.

        Args:
            module: Metric objects inside this module are reset and restored as well. For an evaluation that leaves no
                trace.
        """
        self._layers.append(Layer(MetricObjects(self._layers[-1].objects, module)))
        return len(self._layers) - 1

    def drop_layers(self, depth: int) -> dict[str, Value]:
        """Drop all layers above ``depth`` and their values, if an evaluation was not completed.

        Args:
            depth: The number of layers to keep.

        Returns:
            An empty dict, because such an evaluation has no metrics.
        """
        while len(self._layers) > depth:
            self._layers.pop().objects.drop()
        return {}

    def end_loader(self) -> None:
        """End a loader of an evaluation, and reset the metric objects for the next loader."""
        self._layers[-1].objects.end_loader()

    @property
    def depth(self) -> int:
        """The number of layers, including the layer of training."""
        return len(self._layers)

    def detach_layer(self) -> Layer:
        """Remove the innermost layer and return it. ``attach_layer`` adds it again."""
        return self._layers.pop()

    def attach_layer(self, layer: Layer) -> None:
        """Add a layer that ``detach_layer`` has removed."""
        self._layers.append(layer)

    def close_layer(self, *, keep: bool) -> dict[str, Value]:
        """End an evaluation, and return its metrics.

        Args:
            keep: True to write rows. False for an evaluation that leaves no trace.
        """
        self.agree()
        layer = self._layers.pop()
        rows, dated = layer.read(layer.pending(), self._claimed(layer.objects.close()), {})
        metrics = self._names.rows(rows)
        if keep:
            self._rows.record(metrics, "eval")
            self._rows.record_dated(dated, "eval")
        return metrics
