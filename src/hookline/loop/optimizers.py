"""Optimizers in every form that a user may give them, and what can be wrong with them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hookline.errors import HooklineWarning, SetupError


def make_optimizers(given: Any, module: nn.Module) -> dict[str, Optimizer]:
    """By name: an instance, several, a dict of named ones, or a class or function given the parameters."""
    if not any(True for _ in module.parameters()):
        raise SetupError(f"{type(module).__name__} has no parameters, so there is nothing to train")
    if given is None:
        raise SetupError("no optimizer; pass optimizer=torch.optim.AdamW, or give the task configure_optimizers(run)")
    if not isinstance(given, Optimizer | Mapping | Sequence) and callable(given):
        given = given(module.parameters())
    if isinstance(given, Mapping):
        optimizers = dict(given)
    else:
        optimizers = _named(list(given) if isinstance(given, list | tuple) else [given])
    if not optimizers:
        raise SetupError(f"no optimizer: {given!r} is empty")
    for name, optimizer in optimizers.items():
        if not isinstance(optimizer, Optimizer):
            raise SetupError(f"optimizer {name!r} is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        _check_parameters(name, optimizer, module)
    return optimizers


def _named(optimizers: list[Any]) -> dict[str, Any]:
    """The class's name, numbered from the second of one class on: ``Adam``, ``Adam-2``."""
    named: dict[str, Any] = {}
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        number = 1 + sum(1 for name in named if name.partition("-")[0] == kind)
        named[kind if number == 1 else f"{kind}-{number}"] = optimizer
    return named


def _check_parameters(name: str, optimizer: Optimizer, module: nn.Module) -> None:
    own = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(1 for parameter in held if id(parameter) not in own)
    if foreign == len(held):
        raise SetupError(
            f"none of the {len(held)} parameters of optimizer {name} is a parameter of {type(module).__name__}: "
            f"it would train something else; make it from this model's parameters(), after any copy or .to()"
        )
    if foreign:
        warnings.warn(
            f"{foreign} of {len(held)} parameters of optimizer {name} are not {type(module).__name__}'s: "
            f"they are trained, but not saved with it",
            HooklineWarning,
            stacklevel=2,
        )


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` cannot be called without a closure, as that of LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def name_of(optimizer: Optimizer | None, optimizers: Mapping[str, Optimizer]) -> str:
    """The name of an optimizer of the run; ``None`` will do when there is only one."""
    names = [name for name, other in optimizers.items() if optimizer is other or optimizer is None]
    if len(names) == 1:
        return names[0]
    what = "there are several" if optimizer is None else f"{type(optimizer).__name__} is not one of this run's"
    raise SetupError(
        f"which optimizer? {what}; pass one of {', '.join(optimizers)}: "
        f"loop.backward(loss, optimizer), loop.step(optimizer)"
    )
