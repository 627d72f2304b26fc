"""Find layers of a model by name, and compute norms by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hookline.callbacks._modules import check_patterns, matches, patterns_or_all
from hookline.distributed.dtensors import whole

Layers = bool | str | Sequence[str]
REST = ""
"""Name for parameters that do not belong to a chosen layer."""
LOW = (torch.float16, torch.bfloat16)


def chosen_by(layers: Layers, who: str) -> tuple[str, ...] | None:
    """Return the patterns of the chosen layers: ``None`` for all layers, empty for no layer."""
    return () if layers is False else patterns_or_all(layers, who)


def check_layers(model: nn.Module, patterns: Sequence[str] | None, who: str) -> None:
    """Raise if a pattern matches no layer with parameters."""
    check_patterns(patterns, list(dict.fromkeys(layer_names(model).values())), who, kind="layer with parameters")


def layer_names(model: nn.Module) -> dict[int, str]:
    """Return the first layer that holds each parameter, by ``id`` of the parameter."""
    found: dict[int, str] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            # The name `total` is reserved for the norm of all layers.
            found.setdefault(id(parameter), "model" if not name else f"model.{name}" if name == "total" else name)
    return found


def by_layer(parameters: Iterable[Tensor], model: nn.Module, patterns: Sequence[str] | None) -> dict[str, list[Tensor]]:
    """Return the parameters of each chosen layer, and the other parameters under ``REST``."""
    names = layer_names(model)
    found: dict[str, list[Tensor]] = {}
    for parameter in parameters:
        name = names.get(id(parameter), REST)
        found.setdefault(name if name and matches(name, patterns) else REST, []).append(parameter)
    return found


def split_layers(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> set[str]:
    """Return the layers with parameters in more than one optimizer."""
    names = layer_names(model)
    seen: set[str] = set()
    split: set[str] = set()
    for optimizer in optimizers:
        its = {names[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in names}
        split |= its & seen
        seen |= its
    return split


def with_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer that have a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def values_of(tensor: Tensor) -> Tensor:
    """Return the stored values of a dense or sparse tensor, in a dtype that sums accurately."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values()
    return tensor.float() if tensor.dtype in LOW else tensor


def norms(groups: Iterable[Sequence[Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """Return the total norm and the norm of each group, without synchronizing with the device.

    If the weights are sharded, all ranks must call this.
    """
    groups = list(groups)
    spread = torch._foreach_norm([values_of(tensor) for group in groups for tensor in group])
    single = [whole(norm) for norm in spread]
    stacked = torch.stack([norm.to(single[0]) for norm in single])
    parts = torch.split(stacked, [len(group) for group in groups])
    return torch.linalg.vector_norm(stacked), list(torch._foreach_norm(parts))
