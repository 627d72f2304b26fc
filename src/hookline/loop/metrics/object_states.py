"""The states of torchmetrics objects: found in a module, saved without pickle, put back, set aside.

``nn.Module.state_dict`` leaves them out, unless a metric says otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from hookline.errors import CheckpointMismatchError

OUTSIDE_STATES = ("_num_vals_seen", "min_val", "max_val")
"""What wrappers of torchmetrics (``Running``, ``MinMaxMetric``) remember in plain attributes."""
MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "dim_zero_sum": torch.add,
    "dim_zero_max": torch.maximum,
    "dim_zero_min": torch.minimum,
}
"""How two states become one, by the name of the function that reduces them over processes."""
HELD = ("_computed", "_forward_cache", "_cache", "_groups")
"""What else changes when a metric is used, and is no number."""


def is_metric_object(value: object) -> bool:
    """Whether it is a ``Metric`` or ``MetricCollection``; nothing is one before torchmetrics is imported."""
    return isinstance(value, nn.Module) and isinstance(value, _kinds())


def metrics_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """All metrics and collections inside a module, itself included, each once and by its path."""
    if kinds := _kinds():
        yield from ((path, part) for path, part in module.named_modules() if isinstance(part, kinds))


def holds_metrics(metric: nn.Module) -> bool:
    """Whether it is a collection, a wrapper or a composition: others measure for it."""
    return any(part is not metric for _, part in metrics_in(metric))


def was_updated(metric: nn.Module) -> bool:
    """Whether there is anything to compute from: torchmetrics itself gives a warning and some number."""
    return any(
        vars(part).get("_num_vals_seen") or (getattr(part, "_update_count", 0) and not holds_metrics(part))
        for _, part in metrics_in(metric)
    )


# -- in a checkpoint -----------------------------------------------------------------------------


def settle_groups(metric: nn.Module) -> None:
    """Inside a collection metrics share one state, which only one of them holds until it is asked for."""
    for _, part in metrics_in(metric):
        if _is_collection(part):
            part._compute_groups_create_state_ref(copy=False)


def metric_states(module: nn.Module) -> dict[str, Any]:
    """The state of every metric inside a module, by its path. Tensors are not copied; lists are."""
    return {path: _state(part) for path, part in metrics_in(module)}


def load_metric_states(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Put the states back, bit by bit. A metric that was not saved stays as it is."""
    for path, part in metrics_in(module):
        if path in saved:
            _load(path, part, saved[path])


def _state(part: Any) -> dict[str, Any]:
    if _is_collection(part):
        # Which of its metrics share one state was found out from the first batch; another batch may say otherwise.
        return {"groups": [list(group) for group in part._groups.values()], "checked": part._groups_checked}
    own = vars(part)
    return {
        "states": {name: _detached(own[name]) for name in _declared(part)},
        "updates": part._update_count,
        "extra": {name: _detached(own[name]) for name in OUTSIDE_STATES if name in own},
    }


def _load(path: str, part: Any, saved: Mapping[str, Any]) -> None:
    kind = type(part).__name__
    if _is_collection(part) != ("groups" in saved):
        raise CheckpointMismatchError(f"the metric {path!r} is a {kind} here, and was something else when it was saved")
    if _is_collection(part):
        groups = [list(group) for group in saved["groups"]]
        if {name for group in groups for name in group} == set(part.keys(keep_base=True)):
            part._groups, part._groups_checked = dict(enumerate(groups)), saved["checked"]
        part._state_is_copy = False
        return
    if saved["states"].keys() != _declared(part).keys():
        raise CheckpointMismatchError(
            f"the metric {path!r} ({kind}) has the states {', '.join(_declared(part)) or 'none'}, and that of the "
            f"checkpoint {', '.join(saved['states']) or 'none'}; make the same one as before"
        )
    found = {**saved["states"], **saved["extra"]}
    vars(part).update({name: _moved(value, part) for name, value in found.items()})
    vars(part).update(_update_count=saved["updates"], _computed=None, _forward_cache=None, _cache=None)
    part._is_synced = False


def _moved(value: Any, part: Any) -> Any:
    """A copy where the metric is; what it keeps in lists may stay on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to(part.device, copy=True)
    if isinstance(value, list) and not part.compute_on_cpu:
        return [_moved(item, part) for item in value]
    return deepcopy(value)


def _detached(value: Any) -> Any:
    if isinstance(value, list):
        return [_detached(item) for item in value]
    return value.detach() if isinstance(value, Tensor) else value


# -- two states as one ---------------------------------------------------------------------------


def can_merge(metric: nn.Module) -> bool:
    """Whether two states of it add up to one: those of two intervals then do as those of two processes."""
    for _, part in metrics_in(metric):
        states = _declared(part)
        if holds_metrics(part):
            if states or any(name in vars(part) for name in OUTSIDE_STATES):
                return False
        elif not states or not all(_merge(part, name) for name in states):
            return False
    return True


def merged(metric: nn.Module, earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Two states of one metric as one."""
    found = dict(later)
    for path, part in metrics_in(metric):
        if path in earlier and "groups" in later[path] and earlier[path] != later[path]:
            # Two that found out from other batches which metrics share one state: here none do.
            alone = [[name] for group in later[path]["groups"] for name in group]
            found[path] = {"groups": alone, "checked": True}
        if path in earlier and "states" in later[path]:
            one, two = earlier[path], later[path]
            states = {name: _merge(part, name)(one["states"][name], two["states"][name]) for name in two["states"]}
            found[path] = {**two, "states": states, "updates": one["updates"] + two["updates"]}
    return found


def _merge(part: Any, name: str) -> Any:
    """The function that merges a state, or ``None``."""
    reduce = part._reductions[name]
    by_name = getattr(reduce, "__name__", "")
    if isinstance(part._defaults[name], list):
        return _joined if reduce is None or by_name == "dim_zero_cat" else None
    return MERGES.get(by_name)


def _joined(one: Any, two: Any) -> list[Any]:
    """Lists; a metric may have made one tensor of its list."""
    return [*(one if isinstance(one, list) else [one]), *(two if isinstance(two, list) else [two])]


# -- aside -----------------------------------------------------------------------------------------


class SetAside:
    """The metrics inside some modules begin anew, until they are given back the very state that they had."""

    __slots__ = ("_kept",)

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept: dict[int, tuple[nn.Module, dict[str, Any]]] = {}
        first = [metric for module in modules for metric in _outermost(module)]
        for _, part in (found for metric in first for found in metrics_in(metric)):
            if id(part) not in self._kept:
                changing = {*HELD, *_declared(part)}
                kept = {name: value for name, value in vars(part).items() if name in changing or _is_plain(name, value)}
                self._kept[id(part)] = part, kept
                # It works on copies: an update adds in place, and a reset clears its lists.
                vars(part).update({name: _copy(name, value) for name, value in kept.items()})
        for metric in first:
            metric.reset()

    def __contains__(self, metric: nn.Module) -> bool:
        return id(metric) in self._kept

    def add(self, metric: nn.Module) -> None:
        """One that is met only now begins anew, and is put back as a new one."""
        for identity, (part, kept) in SetAside([metric])._kept.items():
            self._kept[identity] = part, {name: _copy(name, vars(part)[name]) for name in kept}

    def put_back(self) -> None:
        for part, kept in self._kept.values():
            vars(part).update(kept)


def _outermost(module: nn.Module) -> Iterator[Any]:
    """The metrics that are inside no other one: to reset these resets all."""
    if is_metric_object(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


def _is_plain(name: str, value: Any) -> bool:
    """A count, a flag or a tensor beside the states; the mode is not the metric's to change."""
    return isinstance(value, int | float | Tensor) and name != "training"


def _copy(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return list(value)
    return deepcopy(value) if name == "_groups" else value


# ------------------------------------------------------------------------------------------------


def _kinds() -> tuple[type, ...]:
    loaded = sys.modules.get("torchmetrics")
    found = (getattr(loaded, "Metric", None), getattr(loaded, "MetricCollection", None))
    return tuple(kind for kind in found if isinstance(kind, type))


def _declared(part: nn.Module) -> dict[str, Any]:
    """Its own states; a wrapper shows those of what it wraps as if they were its own."""
    own = vars(part)
    return {name: default for name, default in own.get("_defaults", {}).items() if name in own}


def _is_collection(part: nn.Module) -> bool:
    return "_groups_checked" in vars(part)
