"""What this family adds to ``run.schedulers``, and what a change of an optimizer's groups means for those in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookline.progress import Duration

PER_GROUP = ("base_lrs", "max_lrs", "min_lrs", "base_momentums", "max_momentums", "lr_lambdas", "_last_lr")
"""The attributes of torch's schedulers that have one item for each group of parameters."""
RATES = ("base_lrs", "max_lrs", "_last_lr")
GROUP_RATES = ("initial_lr", "max_lr", "min_lr")
"""What schedulers keep in the groups themselves."""
GROUP_EXTRAS = (*GROUP_RATES, "max_momentum", "base_momentum")


class Planned:
    """A scheduler in ``run.schedulers``, with what the loop asks of one: which, when, by which metric."""

    def __init__(self, scheduler: LRScheduler, every: Duration, monitor: str, by: object) -> None:
        self.scheduler = scheduler
        self.by = by
        self.every = every
        self.monitor = monitor
        self._last = getattr(scheduler, "total_steps", None)  # torch's one-cycle refuses to go further
        self.unit = "eval" if isinstance(scheduler, ReduceLROnPlateau) else every.unit

    def due(self, count: int) -> bool:
        is_over = self._last is not None and self.scheduler.last_epoch >= self._last
        return not is_over and count % self.every.value == 0


def schedulers_of(optimizer: Optimizer, entries: Iterable[Any]) -> Iterator[Any]:
    """The schedulers of an optimizer, those that a scheduler holds included."""
    for entry in entries:
        if entry.scheduler.optimizer is optimizer:
            yield from _with_inner(entry.scheduler)


def _with_inner(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _with_inner(inner)


def take_out_former(optimizer: Optimizer, entries: list[Any], present: Iterable[object]) -> bool:
    """Take out what callbacks that are not in the run any more have planned for an optimizer. Whether there was any.

    Its groups are at their own rates again, as if they had not been moved, unless something else moves them, too.
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
    """Groups were added or taken away: each scheduler gets one item more or fewer. Torch's fail if they do not fit.

    A new group goes as the group ``lead`` does.
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
    if name == "base_lrs":
        return group.get("initial_lr", group["lr"])
    return group.get("max_lr", group["lr"]) if name == "max_lrs" else other


def scale_rate(optimizer: Optimizer, index: int, factor: float, entries: Iterable[Any]) -> None:
    """One group's rate times ``factor``, now and in all that its schedulers will do."""
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
    """The rate that a group is meant to have, whatever a scheduler has made of it."""
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def like(rate: Any, value: float) -> Any:
    """A new rate of the same kind: a tensor, if the other is one."""
    return rate.clone().fill_(value) if isinstance(rate, torch.Tensor) else value


def set_rate(group: dict[str, Any], rate: float) -> None:
    """The rate of a group; one that is a tensor stays the same tensor, as a compiled or captured step needs."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
