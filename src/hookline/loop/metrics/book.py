"""The metric book: values stay tensors until their interval ends, then leave in one transfer.

Every metric is a sum and a weight, in float64. ``log`` keeps a detached copy and its weight; nothing
is read from the device before the interval ends, unless somebody reads ``run.metrics``.
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
    """Where ``run.log`` writes: one layer for training, and one for each evaluation that is open."""

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
        """Set metrics of this interval to these values, whatever was logged before."""
        self._groups.clear()
        self._rows.measured.clear()  # the same metric may be set several times at one step
        for name in values:
            self._layers[-1].series.pop(self.full_name(name), None)
        self.log(values, None, "mean")

    def log_loss(self, value: Any, weight: Any) -> None:
        """The loss that a batch of an evaluation has come to: nobody else logs under its name."""
        if self._muted is None:
            self._add(self.full_name("loss"), value, weight, "mean", None, of_loop=True)

    @property
    def muted(self) -> bool:
        """A batch is computed only for the sake of the other ranks: what is logged of it counts nothing.

        Metric objects, too, are then as they were before it.
        """
        return self._muted is not None

    def mute(self) -> None:
        """Ignore what is logged until ``unmute``: a batch is computed only because other ranks have one."""
        if self._muted is None:
            self._muted = self._layers[-1].objects
            self._muted.mute(self._state.module)

    def unmute(self) -> None:
        """Count what is logged again, and restore the metric objects to their states before ``mute``."""
        if self._muted is not None:
            self._muted.unmute()
            self._muted = None

    def _note_unheard(self, values: Mapping[str, Any], step: int | None, by: Run | None) -> None:
        """Of a batch that does not count: which objects there are, for what the other ranks have measured."""
        if values.__class__ is not dict and is_metric_object(values):
            self._note_all(values, step, by)
            return
        for name, value in values.items():
            if isinstance(value, nn.Module) and is_metric_object(value):
                self._note(name, value, step, by)

    def _note(self, name: str, metric: Any, step: int | None, by: Run | None) -> None:
        """A torchmetrics object: computed when the interval or the evaluation ends."""
        full = self.full_name(name)
        if step is not None:
            raise MetricError(f"{full}: a metric object is computed at the end of its interval; leave step= out")
        self.claim(full, "a metric object")
        of_loader = "/" not in name and self._state.loader_name not in (MISSING, None)
        self._layers[-1].objects.note(full, metric, of_loader=of_loader, tolerates=self._tolerance(by))

    def _note_all(self, collection: Any, step: int | None, by: Run | None) -> None:
        """``run.log(collection)``: its keys are names."""
        prefix = self.full_name("all")[:-3]
        if step is not None or not hasattr(collection, "keys"):
            raise MetricError(f"run.log({type(collection).__name__}): give it a name, and no step: {{'acc': metric}}")
        of_loader = prefix.count("/") > 1
        self._layers[-1].objects.note(prefix, collection, of_loader=of_loader, tolerates=self._tolerance(by))

    def _tolerance(self, by: Run | None) -> Tolerates | None:
        """An object is computed when the callback that logged it is not at work: its error is still that callback's."""
        if by is None or not by.member.optional:
            return None
        return partial(self._state.line.tolerates, by, "compute")

    def _claimed(self, rows: Values) -> Values:
        """The rows of objects: a number that is logged under one of these names would be lost."""
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
        """The open series of a metric in the innermost layer."""
        return opened(self._layers[-1].series, name, name, reduce)

    def _dated(self, name: str, reduce: str, step: Any) -> Series:
        step = step_of(name, step)
        last = self._rows.measured.get(self._names.shown(name)[0])
        if last is not None and step <= last:
            raise MetricError(
                f"{name}: step={step} comes after a row of step {last}; the steps of one metric only grow"
            )
        return opened(self._layers[-1].dated, (name, step), name, reduce)

    def _group(self, values: Mapping[str, Any]) -> None:
        """What is logged together once is probably logged together again."""
        key = (self._state.stage, *values)
        found = [self._layers[0].series.get(self.full_name(name)) for name in values]
        members = [series for series in found if series is not None]
        if len(members) < len(values) or len({series.reduce for series in members}) > 1 or members[0].reduce == "last":
            return
        for series in members:
            # Of another group, or of the engine: values would come in another order than they were logged in.
            if series.group is not None or series.shape or series.is_direct:
                return
        self._groups[key] = Group(members)

    def claim(self, name: str, kind: str) -> None:
        """A name stays what it is: a number, an array of one shape, an image, a text."""
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise MetricError(f"{name}: {kind} is logged, and before it was {known}; give one of them another name")

    def full_name(self, name: str) -> str:
        """With the prefix of the stage, unless it has one."""
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
        """Show a metric under another full name from now on."""
        self._names.rename(old, new, keep=keep)

    def forget_names(self) -> None:
        """A new run begins, with callbacks of its own."""
        self._names.forget()

    # -- reading -------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """The newest value: what is pending in the innermost layer that has it, else the last row."""
        inner = self._names.inner(name)
        for layer in () if self._names.is_hidden(name) else reversed(self._layers):
            if self._reduction is not None and layer is self._layers[0] and name in self._rows.newest:
                break  # what is pending there is this rank's own part: others would see, and decide on, another number
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
        seen = dict.fromkeys(self._rows.newest)
        for layer in self._layers:
            for name in (*layer.pending(), *layer.objects.names()):
                seen.update(dict.fromkeys(self._names.shown(name)))
        return iter(seen)

    @property
    def newest(self) -> Mapping[str, Value]:
        """The value of the last row of each metric; nothing that is pending is read."""
        return self._rows.newest

    def inner_name(self, name: str) -> str:
        """The name under which a metric is logged that is shown by this one: who renames it reads it."""
        return self._names.inner(name)

    def measured_at(self, name: str) -> int | None:
        """The step of its newest value: this one, if it is pending in training or in an evaluation that is open."""
        inner = self._names.inner(name)
        is_pending = any(inner in layer.pending() or inner in layer.objects.names() for layer in self._layers)
        return self._state.clock.step if is_pending else self._rows.measured.get(name)

    def measured_now(self, *, pending: bool = False) -> dict[str, float]:
        """The numbers that were measured at this very step, those of an evaluation that is open included.

        With ``pending`` also what was logged since the last interval of training has ended.
        """
        step = self._state.clock.step
        found = {name: value for name, value in self._rows.newest.items() if self._rows.measured.get(name) == step}
        for layer in self._layers[0 if pending else 1 :]:
            for inner in (*layer.pending(), *layer.objects.names()):
                found.update({name: self.value(name) for name in self._names.shown(inner)})
        return {name: value for name, value in found.items() if isinstance(value, int | float)}

    def state_dict(self, paths: Mapping[int, str] | None = None) -> dict[str, Any]:
        """What is pending in training, the open epoch, and the newest values.

        ``paths`` are of the metric objects that are saved with the module or callback that holds them, by ``id``.
        """
        return {
            "objects": self._layers[0].objects.state_dict(paths or {}),
            "pending": {name: s.state_dict() for name, s in self._layers[0].series.items()},
            "dated": [(name, step, s.state_dict()) for (name, step), s in self._layers[0].dated.items()],
            **self._epoch.state_dict(),
            **self._rows.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], by_path: Mapping[str, Any] | None = None) -> None:
        self._epoch.load_state_dict(state)
        self._layers[0].objects.load_state_dict(state.get("objects", {}), by_path or {})
        for name, its in state["pending"].items():  # in place: the engine holds the series of the loss
            self._layers[0].series.setdefault(name, Series(its["reduce"])).load_state_dict(its)
        for name, step, its in state.get("dated", ()):
            self._layers[0].dated[name, step] = Series(its["reduce"])
            self._layers[0].dated[name, step].load_state_dict(its)
        self._rows.load_state_dict(state)

    def go_back(self, state: Mapping[str, Any], by_path: Mapping[str, Any], *, same_epoch: bool) -> None:
        """Steps are taken back: what was pending before them is pending again, unless its epoch is over."""
        self._layers[0].forget()
        self._layers[0].objects.go_back(state.get("objects", {}), by_path, same_epoch=same_epoch)
        over: dict[str, Any] = (
            {} if same_epoch else {"objects": {}, "pending": {}, "dated": [], "epoch": {}, "before": {}}
        )
        self.load_state_dict({**state, **over}, by_path)

    # -- over ranks ----------------------------------------------------------------------------

    def join(self) -> None:
        """Add up the metrics of all ranks while the world is open, and only those of this process otherwise."""
        self._reduction = None if self._world.is_alone or not self._world.is_open else Reduction(self._world)
        self.unmute()

    @property
    def has_pending(self) -> bool:
        """Whether this rank has logged anything in training since the last row."""
        return self._layers[0].has_own

    def agree(self, *, left: bool = False, of_epoch: bool = False, depth: int = -1) -> bool:
        """By all, at the same place: what each rank has logged since the last time becomes what all have.

        At the end of an interval; before ``eval_loader_end`` and ``eval_end``, so that monitors see the value of all
        ranks; and at the end of an evaluation or prediction. Whether any rank has ``left`` its evaluation.
        """
        reduction, layer = self._reduction, self._layers[depth]
        if reduction is None or reduction.broken:
            return left
        place = "train" if layer is self._layers[0] else self._state.stage
        return layer.agree(reduction, place, left=left, of_epoch=of_epoch)

    # -- intervals and evaluations ---------------------------------------------------------------

    def fold(self) -> None:
        """Bound the memory of a long interval."""
        for series in self._layers[0].series.values():
            if len(series.values) >= FOLD // 2:
                series.fold()

    def end_interval(self, *, of_epoch: bool = True, widened: bool = False) -> bool:
        """Close the interval of training: one transfer, then rows. Whether there was anything.

        What is logged after the end of an epoch belongs to no epoch's mean. ``widened``: it is short, so its means are
        those of the interval before as well, if that was of the same epoch.
        """
        if self._reduction is not None and self._reduction.broken:
            self._layers[0].forget()  # a row is of all ranks, or there is none
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
        """Close the epoch: each averaged metric once more, over the whole epoch, as ``<name>_epoch``."""
        if self._reduction is None:
            self.end_interval()
            objects = self._layers[0].objects.end_epoch()
        else:  # the interval has just been ended by all; its rows are those of all ranks, and add up to the epoch's
            objects = end_epoch(self._layers[0].objects, self._reduction)
        found = {**self._epoch.take(), **objects}
        if found:
            rows = dict(zip(found, to_python(list(found.values())), strict=True))
            self._rows.record(self._names.rows(rows, "_epoch"), "epoch")

    def open_layer(self, module: nn.Module | None = None) -> int:
        """Open one; the depth below it, for ``drop_layers``.

        Metric objects that were logged before begin anew in it and are put back after it; and, for one that leaves
        no trace, so do all that are inside ``module``.
        """
        self._layers.append(Layer(MetricObjects(self._layers[-1].objects, module)))
        return len(self._layers) - 1

    def drop_layers(self, depth: int) -> dict[str, Value]:
        """After an error, or if it was left: nothing that was logged since counts, and there are no metrics."""
        while len(self._layers) > depth:
            self._layers.pop().objects.drop()
        return {}

    def end_loader(self) -> None:
        """A loader of an evaluation is done: what measures several of them in turn begins anew."""
        self._layers[-1].objects.end_loader()

    @property
    def depth(self) -> int:
        """How many layers there are, that of training included."""
        return len(self._layers)

    def detach_layer(self) -> Layer:
        """Take an open layer away, to be attached again when it is known what becomes of it."""
        return self._layers.pop()

    def attach_layer(self, layer: Layer) -> None:
        self._layers.append(layer)

    def close_layer(self, *, keep: bool) -> dict[str, Value]:
        """Close an evaluation: its metrics, recorded as rows or, for one that leaves no trace, not."""
        self.agree()
        layer = self._layers.pop()
        rows, dated = layer.read(layer.pending(), self._claimed(layer.objects.close()), {})
        metrics = self._names.rows(rows)
        if keep:
            self._rows.record(metrics, "eval")
            self._rows.record_dated(dated, "eval")
        return metrics
