"""One torchmetrics object under one name: its rows, and its states over intervals, epochs and ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

    def note(self, metric: Any, *, muted: bool = False) -> None:
        """It is logged: the same object each time. ``muted``: with a batch that does not count."""
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
