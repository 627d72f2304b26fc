"""Find parameters by the names of their layers, and freeze or unfreeze them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hookline.callbacks._modules import check_patterns, matches
from hookline.errors import SetupError


def named(
    model: nn.Module, patterns: Sequence[str], who: str, argument: str = "layers", *, but: Sequence[str] = ()
) -> list[str]:
    """Return the names of the parameters that match the patterns and do not match ``but``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> named(model, ["0"], "Freeze"), named(model, ["*"], "Freeze", but=["1"])
        (['0.weight', '0.bias'], ['0.weight', '0.bias'])
    """
    names = [name for name, _ in model.named_parameters()]
    check_patterns(patterns, names, who, argument, kind="parameter")
    check_patterns(but, names, who, "but", kind="parameter")
    return [name for name in names if matches(name, patterns) and not matches(name, but)]


def batch_norms(model: nn.Module, names: Iterable[str]) -> list[tuple[str, nn.Module]]:
    """Return the batch norms that own some of these parameters, with their names."""
    owners = {name.rpartition(".")[0] for name in names}
    return [(name, part) for name, part in model.named_modules() if isinstance(part, _BatchNorm) and name in owners]


def without_batch_norms(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the names of the parameters that do not belong to a batch norm."""
    norms = {name for name, _ in batch_norms(model, names)}
    return [name for name in names if name.rpartition(".")[0] not in norms]


def set_trainable(model: nn.Module, names: Iterable[str], trainable: bool) -> None:
    """Freeze or unfreeze parameters. Delete the gradients of frozen ones for the optimizer."""
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(trainable)
        if not trainable:
            parameters[name].grad = None


def check_something_is_left(model: nn.Module, who: str) -> None:
    """Raise if the model has no parameter left to train."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SetupError(f"{who}: all of {type(model).__name__} is frozen, so nothing is left to train; freeze less")
