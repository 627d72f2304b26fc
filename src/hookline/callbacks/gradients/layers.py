"""Layers of a model by name, and the norms of what belongs to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hookline.callbacks.name_patterns import check_patterns, matches, patterns_or_all
from hookline.callbacks.whole import whole

Layers = bool | str | Sequence[str]
REST = ""
"""Under this name is what belongs to no layer that was chosen."""
LOW = (torch.float16, torch.bfloat16)


def chosen_by(layers: Layers, who: str) -> tuple[str, ...] | None:
    """``None`` for all layers, nothing for none; else names and patterns, each with all that is inside it."""
    return () if layers is False else patterns_or_all(layers, who)


def check_layers(model: nn.Module, patterns: Sequence[str] | None, who: str) -> None:
    """Each pattern means at least one layer that has parameters."""
    check_patterns(patterns, list(dict.fromkeys(layer_names(model).values())), who, kind="layer with parameters")


def layer_names(model: nn.Module) -> dict[int, str]:
    """By ``id`` of a parameter: the layer that holds it, the first one if there are several."""
    found: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            # ``total`` is the name of the sum of all.
            found.setdefault(id(parameter), "model" if not name else f"model.{name}" if name == "total" else name)
    return found


def by_layer(parameters: Iterable[Tensor], model: nn.Module, patterns: Sequence[str] | None) -> dict[str, list[Tensor]]:
    """The parameters of each layer that was chosen; the others under ``REST``."""
    names = layer_names(model)
    found: dict[str, list[Tensor]] = {}
    for parameter in parameters:
        name = names.get(id(parameter), REST)
        found.setdefault(name if name and matches(name, patterns) else REST, []).append(parameter)
    return found


def split_layers(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> set[str]:
    """The layers that have parameters in more than one optimizer."""
    names = layer_names(model)
    seen: set[str] = set()
    split: set[str] = set()
    for optimizer in optimizers:
        its = {names[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in names}
        split |= its & seen
        seen |= its
    return split


def with_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def values_of(tensor: Tensor) -> Tensor:
    """Without what a sparse gradient does not hold, and in a number format that sums well."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values()
    return tensor.float() if tensor.dtype in LOW else tensor


def norms(groups: Iterable[Sequence[Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """The norm of all, and of each group. Nothing is read from the device; by all ranks, if they share weights."""
    groups = list(groups)
    spread = torch._foreach_norm([values_of(tensor) for group in groups for tensor in group])
    single = [whole(norm) for norm in spread]
    stacked = torch.stack([norm.to(single[0]) for norm in single])
    parts = torch.split(stacked, [len(group) for group in groups])
    return torch.linalg.vector_norm(stacked), list(torch._foreach_norm(parts))
