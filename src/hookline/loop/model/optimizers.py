"""Create the optimizers of a run from what the user passed, and check them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hookline.errors import HooklineWarning, SetupError, kind_of
from hookline.run import MISSING, RunState


def make_optimizers(given: Any, module: nn.Module, title: str) -> dict[str, Optimizer]:
    """Return the optimizers of a run by name.

    Args:
        given: An optimizer, a list or dict of optimizers, or a class or function of the parameters.
        module: The task, or the model of a custom loop.
        title: Name of the model for messages.
    """
    if not any(True for _ in module.parameters()):
        raise SetupError(f"{title} has no parameters, so there is nothing to train")
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
            raise _no_optimizer(name, optimizer)
        _check_parameters(name, optimizer, module, title)
    return optimizers


def _no_optimizer(name: object, given: object) -> SetupError:
    if isinstance(given, str):
        kinds = [kind for kind, value in vars(torch.optim).items() if inspect.isclass(value)]
        found = [kind for kind in kinds if kind.lower() == given.lower()] or ["AdamW"]
        return SetupError(f"optimizer={given!r} is a text; pass optimizer=torch.optim.{found[0]}, or an object of it")
    named = "" if name == type(given).__name__ else f" {name!r}"
    return SetupError(
        f"optimizer{named} is {kind_of(given)}, not a torch.optim.Optimizer; pass "
        f"optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4), or the class, or a function of the parameters"
    )


@contextmanager
def watch_optimizers(state: RunState, title: str, *, warns: bool) -> Iterator[None]:
    """Warn about parameters without an optimizer or a model, and about calls of ``optimizer.step()``.

    Only a custom loop can call ``optimizer.step()`` by mistake.

    Args:
        state: The state of the run.
        title: Name of the model for messages.
        warns: True to warn about parameters. The pre-flight reports them itself.
    """
    if warns:
        for problem in misplaced_parameters(state, title):
            warnings.warn(" ".join(problem), HooklineWarning, stacklevel=2)
    with ExitStack() as hooks:
        if state.task is MISSING:
            for name, optimizer in state.optimizers.items():
                hooks.callback(optimizer.register_step_pre_hook(_StepsBeside(name, state)).remove)
        yield


class _StepsBeside:
    """Hook that warns once if ``optimizer.step()`` is called in addition to ``loop.step()``."""

    def __init__(self, name: str, state: RunState) -> None:
        self._name, self._state, self._said = name, state, False

    def __call__(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._state.optimizer is optimizer or self._said:
            return
        self._said = True
        warnings.warn(
            f"{self._name}.step() was called outside loop.step(), at step {self._state.clock.step}: loop.step() makes "
            f"the update itself, so the weights move twice; leave optimizer.step() and optimizer.zero_grad() out",
            HooklineWarning,
            stacklevel=3,
        )


def misplaced_parameters(state: RunState, title: str) -> list[tuple[str, str]]:
    """Return what is wrong and what to do if model and optimizers do not hold the same parameters.

    Args:
        state: The state of the run.
        title: Name of the model for messages.
    """
    unheld = _unheld(state.optimizers, state.module, title, state.line.order.callbacks)
    if unheld is not None:  # Foreign parameters are then those of a part that was replaced.
        return [unheld]
    foreign = [_foreign(name, optimizer, state.module, title) for name, optimizer in state.optimizers.items()]
    return [problem for problem in foreign if problem is not None]


def _unheld(
    optimizers: Mapping[str, Optimizer], module: nn.Module, title: str, callbacks: Iterable[object]
) -> tuple[str, str] | None:
    """Return what is wrong and what to do if trainable parameters are in no optimizer, else ``None``.

    A structural callback may add them to an optimizer later. If there is one, nothing is wrong.
    """
    if any(getattr(callback, "structural", False) for callback in callbacks):
        return None
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    trainable = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    left = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in held]
    if not left:
        return None
    shown = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
    return (
        f"{len(left)} of {len(trainable)} trainable parameters of {title} are in no optimizer and "
        f"stay as they are: {shown}.",
        "If this is meant, freeze them with requires_grad_(False).",
    )


def _foreign(name: str, optimizer: Optimizer, module: nn.Module, title: str) -> tuple[str, str] | None:
    """Return what is wrong and what to do if an optimizer holds parameters of something else, else ``None``."""
    own = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(1 for parameter in held if id(parameter) not in own)
    if not foreign:
        return None
    return (
        f"{foreign} of {len(held)} parameters of optimizer {name} are not {title}'s: they are trained, but not saved "
        f"with it, and in several processes their gradients are not averaged.",
        "Pass one model that holds them all, such as nn.ModuleDict(dict(model=model, loss=loss)).",
    )


def _named(optimizers: list[Any]) -> dict[str, Any]:
    """Return optimizers by class name, with a number from the second of a class on: ``Adam-2``."""
    named: dict[str, Any] = {}
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        number = 1 + sum(1 for name in named if name.partition("-")[0] == kind)
        named[kind if number == 1 else f"{kind}-{number}"] = optimizer
    return named


def _check_parameters(name: str, optimizer: Optimizer, module: nn.Module, title: str) -> None:
    own = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(1 for parameter in held if id(parameter) not in own)
    if foreign == len(held):
        raise SetupError(
            f"none of the {len(held)} parameters of optimizer {name} is a parameter of {title}: "
            f"it would train something else; make it from this model's parameters(), after any copy or .to()"
        )


def needs_closure(optimizer: Optimizer) -> bool:
    """True if ``step`` of an optimizer needs a closure, as that of ``LBFGS``."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def name_of(optimizer: Optimizer | None, optimizers: Mapping[str, Optimizer]) -> str:
    """Return the name of an optimizer. ``None`` stands for the only optimizer of a run."""
    names = [name for name, other in optimizers.items() if optimizer is other or optimizer is None]
    if len(names) == 1:
        return names[0]
    what = "there are several" if optimizer is None else f"{type(optimizer).__name__} is not one of this run's"
    raise SetupError(
        f"which optimizer? {what}; pass one of {', '.join(optimizers)}: "
        f"loop.backward(loss, optimizer), loop.step(optimizer)"
    )
