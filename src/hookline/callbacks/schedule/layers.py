"""Layers by name: which parameters a pattern means, and what it is to freeze them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hookline.errors import RegistrationError, SetupError


def patterns_of(given: str | Iterable[str], who: str) -> tuple[str, ...]:
    """One pattern or several, as a tuple; none is an error."""
    found = (given,) if isinstance(given, str) else tuple(given)
    if not found or not all(isinstance(pattern, str) and pattern for pattern in found):
        raise RegistrationError(f"{who}: {given!r} names no layer; give names or patterns, such as 'backbone.*'")
    return found


def named(model: nn.Module, patterns: Sequence[str], who: str, *, but: Sequence[str] = ()) -> list[str]:
    """The names of the parameters that the patterns mean: those of a layer with such a name, or with names like it.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> named(model, ["0"], "Freeze"), named(model, ["*"], "Freeze", but=["1.*"])
    (['0.weight', '0.bias'], ['0.weight', '0.bias'])
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in (*patterns, *but):
        if not any(_means(pattern, name) for name in names):
            _refuse(model, pattern, who)
    return [
        name
        for name in names
        if any(_means(pattern, name) for pattern in patterns) and not any(_means(pattern, name) for pattern in but)
    ]


def _means(pattern: str, name: str) -> bool:
    """Whether a pattern is that of a parameter, or of a layer that it is in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(len(parts), 0, -1))


def _refuse(model: nn.Module, pattern: str, who: str) -> None:
    known = [name for name, _ in model.named_modules() if name] + [name for name, _ in model.named_parameters()]
    known = list(dict.fromkeys(known))
    close = get_close_matches(pattern, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there is {', '.join(known[:12])}"
    if pattern in dict(model.named_modules()):
        hint = "this layer has no parameters"
    raise SetupError(f"{who}: no layer of {type(model).__name__} is called {pattern!r}; {hint}")


def batch_norms(model: nn.Module, names: Iterable[str]) -> list[tuple[str, nn.Module]]:
    """The batch norms that some of the parameters belong to, by name."""
    owners = {name.rpartition(".")[0] for name in names}
    return [(name, part) for name, part in model.named_modules() if isinstance(part, _BatchNorm) and name in owners]


def without_batch_norms(model: nn.Module, names: Sequence[str]) -> list[str]:
    """The parameters that belong to no batch norm."""
    norms = {name for name, _ in batch_norms(model, names)}
    return [name for name in names if name.rpartition(".")[0] not in norms]


def set_trainable(model: nn.Module, names: Iterable[str], trainable: bool) -> None:
    """Freeze parameters, or unfreeze them. A frozen one has no gradient that an optimizer could still use."""
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(trainable)
        if not trainable:
            parameters[name].grad = None


def check_something_is_left(model: nn.Module, who: str) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SetupError(f"{who}: all of {type(model).__name__} is frozen, so nothing is left to train; freeze less")
