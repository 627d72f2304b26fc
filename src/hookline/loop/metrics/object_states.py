"""The states of torchmetrics objects: find, save, load, merge, reset and restore them.

``nn.Module.state_dict`` does not contain them, unless a metric has persistent states.
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
"""Plain attributes in which wrappers of torchmetrics (``Running``, ``MinMaxMetric``) keep state."""
MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "dim_zero_sum": torch.add,
    "dim_zero_max": torch.maximum,
    "dim_zero_min": torch.minimum,
}
"""Function that merges two states, by the name of the function that reduces them over processes."""
HELD = ("_computed", "_forward_cache", "_cache", "_groups")
"""Other attributes that change when a metric is used, and are not numbers."""


def is_metric_object(value: object) -> bool:
    """True for a ``Metric`` or a ``MetricCollection``. It does not import torchmetrics."""
    return isinstance(value, nn.Module) and isinstance(value, _kinds())


def metrics_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Iterate over the metrics and collections in a module, including itself, with their paths."""
    if kinds := _kinds():
        yield from ((path, part) for path, part in module.named_modules() if isinstance(part, kinds))


def holds_metrics(metric: nn.Module) -> bool:
    """True for a collection, a wrapper or a composition, which contain other metrics."""
    return any(part is not metric for _, part in metrics_in(metric))


def was_updated(metric: nn.Module) -> bool:
    """True if a metric was updated. Otherwise ``compute`` would warn and return a number."""
    return any(
        vars(part).get("_num_vals_seen") or (getattr(part, "_update_count", 0) and not holds_metrics(part))
        for _, part in metrics_in(metric)
    )


# -- in a checkpoint -----------------------------------------------------------------------------


def settle_groups(metric: nn.Module) -> None:
    """Let all metrics of a collection refer to the state that one of them holds for its group."""
    for _, part in metrics_in(metric):
        if _is_collection(part):
            part._compute_groups_create_state_ref(copy=False)


def metric_states(module: nn.Module) -> dict[str, Any]:
    """Return the state of each metric in a module, by path. Lists are copied, tensors are not."""
    return {path: _state(part) for path, part in metrics_in(module)}


def load_metric_states(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load states exactly. A metric that was not saved stays unchanged."""
    for path, part in metrics_in(module):
        if path in saved:
            _load(path, part, saved[path])


def _state(part: Any) -> dict[str, Any]:
    if _is_collection(part):
        # Torchmetrics derives from the first batch which metrics have equal states. Another batch may differ.
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
    """Return a copy on the device of the metric. Lists may stay on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to(part.device, copy=True)
    if isinstance(value, list) and not part.compute_on_cpu:
        return [_moved(item, part) for item in value]
    return deepcopy(value)


def _detached(value: Any) -> Any:
    if isinstance(value, list):
        return [_detached(item) for item in value]
    return value.detach() if isinstance(value, Tensor) else value


# -- merging two states ---------------------------------------------------------------------------


def can_merge(metric: nn.Module) -> bool:
    """True if two states of a metric can be merged, of two intervals or of two processes."""
    for _, part in metrics_in(metric):
        states = _declared(part)
        if holds_metrics(part):
            if states or any(name in vars(part) for name in OUTSIDE_STATES):
                return False
        elif not states or not all(_merge(part, name) for name in states):
            return False
    return True


def merged(metric: nn.Module, earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return two states of a metric merged into one."""
    found = dict(later)
    for path, part in metrics_in(metric):
        if path in earlier and "groups" in later[path] and earlier[path] != later[path]:
            # The two collections found different groups of metrics with equal states: use no groups.
            alone = [[name] for group in later[path]["groups"] for name in group]
            found[path] = {"groups": alone, "checked": True}
        if path in earlier and "states" in later[path]:
            one, two = earlier[path], later[path]
            states = {name: _merge(part, name)(one["states"][name], two["states"][name]) for name in two["states"]}
            found[path] = {**two, "states": states, "updates": one["updates"] + two["updates"]}
    return found


def _merge(part: Any, name: str) -> Any:
    """Return the function that merges a state. ``None`` if it cannot be merged."""
    reduce = part._reductions[name]
    by_name = getattr(reduce, "__name__", "")
    if isinstance(part._defaults[name], list):
        return _joined if reduce is None or by_name == "dim_zero_cat" else None
    return MERGES.get(by_name)


def _joined(one: Any, two: Any) -> list[Any]:
    """Return two lists as one. A metric may have made one tensor of its list."""
    return [*(one if isinstance(one, list) else [one]), *(two if isinstance(two, list) else [two])]


# -- setting aside -----------------------------------------------------------------------------------------


class SetAside:
    """Reset the metrics in some modules, until ``restore`` restores their states.

    Args:
        modules: The modules.
    """

    __slots__ = ("_kept",)

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept: dict[int, tuple[nn.Module, dict[str, Any]]] = {}
        first = [metric for module in modules for metric in _outermost(module)]
        for _, part in (found for metric in first for found in metrics_in(metric)):
            if id(part) not in self._kept:
                changing = {*HELD, *_declared(part)}
                kept = {name: value for name, value in vars(part).items() if name in changing or _is_plain(name, value)}
                self._kept[id(part)] = part, kept
                # The metric works on copies, because an update adds in place and a reset clears its lists.
                vars(part).update({name: _copy(name, value) for name, value in kept.items()})
        for metric in first:
            metric.reset()

    def __contains__(self, metric: nn.Module) -> bool:
        return id(metric) in self._kept

    def add(self, metric: nn.Module) -> None:
        """Reset a metric that is found later. ``restore`` restores it as reset."""
        for identity, (part, kept) in SetAside([metric])._kept.items():
            self._kept[identity] = part, {name: _copy(name, vars(part)[name]) for name in kept}

    def restore(self) -> None:
        """Restore the states of all metrics."""
        for part, kept in self._kept.values():
            vars(part).update(kept)


def _outermost(module: nn.Module) -> Iterator[Any]:
    """Iterate over the metrics that are not inside another metric. Resetting them resets all."""
    if is_metric_object(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


def _is_plain(name: str, value: Any) -> bool:
    """True for a count, a flag or a tensor that is not a state.

    A metric does not change its mode.
    """
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
    """Return the states that a metric itself declares. A wrapper also shows those of its metric."""
    own = vars(part)
    return {name: default for name, default in own.get("_defaults", {}).items() if name in own}


def _is_collection(part: nn.Module) -> bool:
    return "_groups_checked" in vars(part)
