"""Load the tensors of a checkpoint into a model that is sharded differently, or not at all.

A tensor of a sharded checkpoint is read into the shard of it that this rank holds. A full tensor is cut to that shard.
A tensor of the state is sharded like the weight that it belongs to. In the state of an optimizer, this is the parameter
with the same index. In the state of a callback, it is the weight with the same name and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookline.checkpoint.prepared import STATE, WEIGHTS
from hookline.distributed.dtensors import is_spread, room_like, spread_like

_OPTIMIZERS = "optimizers/"


Rooms = Callable[[str, tuple[int, ...], torch.dtype], Tensor | None]
"""Function of name, shape and dtype that returns the tensor to read into, or ``None``."""


def rooms(module: nn.Module, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> Rooms:
    """Return the function that finds the tensor to read each tensor of a checkpoint into.

    It returns a tensor like the shard that this rank holds, or ``None`` for a tensor that is not sharded.

    Args:
        module: The task, or the model of a custom loop.
        model: The model.
        optimizers: The optimizers of the run.
    """
    weights = {**_weights(module), **_weights(model)}
    by_index = {
        f"{_OPTIMIZERS}{name}/state/{index}": parameter
        for name, optimizer in optimizers.items()
        for index, parameter in enumerate(_parameters(optimizer))
    }

    def room(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        path = name.removeprefix(STATE)
        if name.startswith(WEIGHTS):
            pattern = weights.get(name.removeprefix(WEIGHTS))
        elif path.startswith(_OPTIMIZERS):
            pattern = by_index.get(path.rpartition("/")[0])
        else:
            pattern = weights.get(path.rpartition("/")[2])
        return room_like(pattern, dtype) if pattern is not None and _fits(shape, pattern) else None

    return room


def placed_weights(wanted: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shard weights like those of a model.

    A tensor that does not fit stays as it is, and the caller raises the error.

    Args:
        wanted: The state dict of the model.
        found: The weights of the checkpoint.
    """
    return {name: _like(value, wanted.get(name)) for name, value in found.items()}


def placed_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Shard each tensor in the state of an optimizer like its parameter."""
    parameters = dict(enumerate(_parameters(optimizer)))
    states = {
        index: {key: _like(value, parameters.get(index)) for key, value in its.items()}
        for index, its in saved["state"].items()
    }
    return {**saved, "state": states}


def placed_state(module: nn.Module, tree: Any) -> Any:
    """Shard the tensors in a callback's state, such as averages, like the weights of that name."""
    if not any(map(is_spread, module.parameters())):
        return tree
    return _placed(tree, {name: value for name, value in _weights(module).items() if is_spread(value)})


def _placed(tree: Any, weights: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        return {
            key: _like(value, weights.get(key)) if isinstance(value, Tensor) else _placed(value, weights)
            for key, value in tree.items()
        }
    if type(tree) in (list, tuple):
        return type(tree)(_placed(value, weights) for value in tree)
    return tree


def _weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _like(value: Any, pattern: Any) -> Any:
    plain = isinstance(value, Tensor) and isinstance(pattern, Tensor)
    return spread_like(value, pattern) if plain and _fits(value.shape, pattern) else value


def _fits(shape: tuple[int, ...], pattern: Tensor) -> bool:
    return is_spread(pattern) and tuple(pattern.shape) == tuple(shape)
