"""Change the learning rate of an optimizer, and of the rest of its schedule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hookline.errors import SetupError
from hookline.loop.model.schedulers import Scheduler

_RATES = ("initial_lr", "max_lr", "min_lr")
"""Entries of a parameter group from which some schedulers compute the learning rate."""
_BASES = ("base_lrs", "max_lrs")
"""Attributes of schedulers with one learning rate per parameter group."""


def learning_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the first parameter group.

    Args:
        optimizer: The optimizer.
    """
    return float(optimizer.param_groups[0]["lr"])


def check_learning_rate(optimizer: Optimizer, schedulers: Iterable[Scheduler], lr: object, name: str) -> float:
    """Return a learning rate that ``set_learning_rate`` can set.

    Args:
        optimizer: The optimizer.
        schedulers: The schedulers of the run.
        lr: The new learning rate.
        name: Name of the setting, for the error.

    Raises:
        SetupError: If it is not a number above 0, or a schedule cannot be scaled to it.
    """
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < float("inf"):
        raise SetupError(f"{name}={lr!r}: must be a number above 0, such as 1e-4.")
    if not learning_rate(optimizer) and any(its.scheduler.optimizer is optimizer for its in schedulers):
        raise SetupError(
            f"{name}={lr!r}: the schedule is at 0 now, so it cannot be scaled to this value. Ask again at a later step."
        )
    return float(lr)


def set_learning_rate(optimizer: Optimizer, schedulers: Iterable[Scheduler], lr: float) -> None:
    """Set the learning rate of the first parameter group.

    The learning rates of other groups, and those that the schedulers will set, change by the same factor.

    Args:
        optimizer: The optimizer.
        schedulers: The schedulers of the run.
        lr: The new learning rate, which ``check_learning_rate`` has returned.
    """
    first, groups = learning_rate(optimizer), optimizer.param_groups
    if not first:
        for group in groups:
            _put(group, "lr", lr)
        return
    for place, group in enumerate(groups):
        _put(group, "lr", lr if not place else float(group["lr"]) * lr / first)
        for name in _RATES:
            if group.get(name) is not None:
                _put(group, name, float(group[name]) * lr / first)
    for its in schedulers:
        if its.scheduler.optimizer is optimizer:
            _scale(its.scheduler, lr / first)


def _put(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group[name], Tensor):  # A compiled or captured optimizer keeps the tensor.
        group[name].fill_(value)
    else:
        group[name] = value


def _scale(scheduler: Any, factor: float) -> None:
    for name in _BASES:
        bases = getattr(scheduler, name, None)
        if isinstance(bases, list):
            setattr(scheduler, name, [base * factor for base in bases])
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [float(group["lr"]) for group in scheduler.optimizer.param_groups]
    for part in getattr(scheduler, "_schedulers", ()):  # `SequentialLR` and `ChainedScheduler` have parts.
        _scale(part, factor)
