"""Learning rate schedulers and the parameter groups that they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookline.errors import SetupError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

PER_GROUP = ("base_lrs", "max_lrs", "min_lrs", "base_momentums", "max_momentums", "lr_lambdas", "_last_lr")
"""Attributes of PyTorch schedulers with one item per parameter group."""
RATES = ("base_lrs", "max_lrs", "_last_lr")
GROUP_RATES = ("initial_lr", "max_lr", "min_lr")
"""Learning rates that schedulers store in the parameter groups."""
GROUP_EXTRAS = (*GROUP_RATES, "max_momentum", "base_momentum")

Saved = list[list[str | None]]
"""Names of the parameters in each group. ``None`` stands for a parameter outside the model."""


class Planned:
    """Entry of ``run.schedulers``: a scheduler, when it steps, and by which metric."""

    def __init__(self, scheduler: LRScheduler, every: Duration, monitor: str, by: object) -> None:
        self.scheduler = scheduler
        self.by = by
        self.every = every
        self.monitor = monitor
        # OneCycleLR raises if it steps beyond its total number of steps.
        self._last = getattr(scheduler, "total_steps", None)
        self.unit = "eval" if isinstance(scheduler, ReduceLROnPlateau) else every.unit

    def due(self, count: int) -> bool:
        """True if the scheduler steps at this count."""
        is_over = self._last is not None and self.scheduler.last_epoch >= self._last
        return not is_over and count % self.every.value == 0


def schedulers_of(optimizer: Optimizer, entries: Iterable[Any]) -> Iterator[Any]:
    """Yield the schedulers of an optimizer, including nested schedulers."""
    for entry in entries:
        if entry.scheduler.optimizer is optimizer:
            yield from _with_inner(entry.scheduler)


def _with_inner(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and the schedulers inside it."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _with_inner(inner)


def take_out_former(optimizer: Optimizer, entries: list[Any], present: Iterable[object]) -> bool:
    """Remove the schedulers of callbacks that left the run. Return True if there were any.

    The parameter groups return to their own learning rates, unless another scheduler changes them.
    """
    present = set(map(id, present))
    own = [entry for entry in entries if entry.scheduler.optimizer is optimizer]
    former = [entry for entry in own if isinstance(entry, Planned) and id(entry.by) not in present]
    entries[:] = [entry for entry in entries if not any(entry is other for other in former)]
    if former and len(former) == len(own):
        for group in optimizer.param_groups:
            set_rate(group, base_rate(group))
            for name in GROUP_EXTRAS:
                group.pop(name, None)
    return bool(former)


def follow_groups(optimizer: Optimizer, entries: Iterable[Any], lead: int = 0) -> None:
    """Adapt the schedulers of an optimizer after parameter groups were added or removed.

    PyTorch schedulers fail if the number of groups differs. A new group follows the group ``lead``.
    """
    groups = optimizer.param_groups
    for scheduler in schedulers_of(optimizer, entries):
        for name in PER_GROUP:
            items = getattr(scheduler, name, None)
            if not isinstance(items, list) or not items:
                continue
            del items[len(groups) :]
            for group in groups[len(items) :]:
                items.append(_item_for(name, group, items[min(lead, len(items) - 1)]))


def _item_for(name: str, group: dict[str, Any], other: Any) -> Any:
    """Return the value of a scheduler attribute for a new group."""
    if name == "base_lrs":
        return group.get("initial_lr", group["lr"])
    return group.get("max_lr", group["lr"]) if name == "max_lrs" else other


def scale_rate(optimizer: Optimizer, index: int, factor: float, entries: Iterable[Any]) -> None:
    """Multiply the learning rate of one group by ``factor``, now and in its schedulers."""
    group = optimizer.param_groups[index]
    set_rate(group, float(group["lr"]) * factor)
    for name in GROUP_RATES:
        if name in group:
            group[name] = group[name] * factor
    for scheduler in schedulers_of(optimizer, entries):
        for name in RATES:
            items = getattr(scheduler, name, None)
            if isinstance(items, list) and index < len(items):
                items[index] = items[index] * factor


def base_rate(group: dict[str, Any]) -> float:
    """Return the learning rate of a group before any scheduler changed it."""
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def like(rate: Any, value: float) -> Any:
    """Return a learning rate of the same type: a tensor if the other is a tensor."""
    return rate.clone().fill_(value) if isinstance(rate, torch.Tensor) else value


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group. Fill a tensor in place, for compiled or captured steps."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def the_optimizer(run: Run, name: str | None, who: str) -> Optimizer:
    """Return the optimizer with this name, or the only optimizer."""
    if name is None and len(run.optimizers) == 1:
        return next(iter(run.optimizers.values()))
    if name is None or name not in run.optimizers:
        there = ", ".join(run.optimizers) or "none"
        raise SetupError(f"{who}(optimizer={name!r}): which optimizer? Give the name of one; there is {there}")
    return run.optimizers[name]


def leading(optimizer: Optimizer, model: nn.Module, part: Iterable[str]) -> int:
    """Return the index of the first group with a parameter outside this part of the model, or 0."""
    inside = set(part)
    own = {id(parameter) for name, parameter in model.named_parameters() if name in inside}
    groups = enumerate(optimizer.param_groups)
    return next((index for index, group in groups if any(id(p) not in own for p in group["params"])), 0)


def own_group(
    optimizer: Optimizer,
    parameters: Iterable[nn.Parameter],
    rate: float,
    name: str,
    entries: Iterable[Any],
    *,
    lead: int,
) -> None:
    """Move parameters to a new parameter group with this learning rate.

    The new group copies the options of the group ``lead``. Schedulers change its learning rate in proportion to the
    learning rate of the group ``lead``.
    """
    parameters = list(parameters)
    chosen = {id(parameter) for parameter in parameters}
    first = optimizer.param_groups[lead]
    now = float(first["lr"]) or float(first.get("initial_lr", 0.0))
    share = rate / now if now else 1.0
    options = {key: value for key, value in first.items() if key not in ("params", "lr", "name", *GROUP_EXTRAS)}
    extras = {key: first[key] * share if key in GROUP_RATES else first[key] for key in GROUP_EXTRAS if key in first}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in chosen]
    own = {"params": parameters, **options, **extras, "lr": like(first["lr"], rate), "name": name}
    optimizer.add_param_group(own)
    follow_groups(optimizer, entries, lead)


def grouping(optimizer: Optimizer, model: nn.Module) -> Saved:
    """Return the names of the parameters in each group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def regroup(
    optimizer: Optimizer,
    saved: Sequence[Sequence[str | None]],
    model: nn.Module,
    entries: Iterable[Any],
    part: Iterable[str],
) -> None:
    """Restore the parameter groups of a checkpoint, so that the saved optimizer state fits.

    The other values of the groups come from the checkpoint. ``part`` names the parameters that have, or will get,
    separate groups.
    """
    if grouping(optimizer, model) == [list(group) for group in saved]:
        return
    parameters = dict(model.named_parameters())
    own = {id(parameter) for parameter in parameters.values()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    unknown = [name for group in saved for name in group if name is not None and name not in parameters]
    if unknown or sum(name is None for group in saved for name in group) != len(foreign):
        raise SetupError(
            f"the checkpoint groups parameters that {type(model).__name__} has not: "
            f"{', '.join(unknown) or 'some that are outside of the model'}; make the same model and optimizer as before"
        )
    others = iter(foreign)
    wanted = [[next(others) if name is None else parameters[name] for name in group] for group in saved]
    first = optimizer.param_groups[0]
    options = {key: value for key, value in first.items() if key not in ("params", "name")}
    del optimizer.param_groups[len(wanted) :]
    for index, group in enumerate(wanted):
        if index < len(optimizer.param_groups):
            optimizer.param_groups[index]["params"] = group
        else:
            optimizer.param_groups.append({**options, "params": group})
    follow_groups(optimizer, entries, leading(optimizer, model, part))
