"""Move parameters to separate parameter groups, and restore these groups after a resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from hookline.callbacks.schedule._schedulers import GROUP_EXTRAS, GROUP_RATES, follow_groups, like
from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run

Saved = list[list[str | None]]
"""Names of the parameters in each group. ``None`` stands for a parameter outside the model."""


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
