"""Where the tensors of a checkpoint go in a run whose model may be spread over ranks in another way, or not at all.

What lies in a checkpoint of ranks is read into the part that this rank holds; what lies in one whole is cut to it. A
tensor of the state is placed as the weight that it belongs to: of an optimizer by the index of its parameter, of a
callback by the name of the weight, if the shape is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookline.checkpoint.prepared import STATE, WEIGHTS
from hookline.distributed.dtensors import is_spread, room_like, spread_like

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine

_OPTIMIZERS = "optimizers/"


def rooms(loop: Engine) -> Callable[[str, tuple[int, ...], torch.dtype], Tensor | None]:
    """For each tensor of a checkpoint that ranks have written: the part that this rank has of it, to be read into."""
    weights = _weights(loop.state.module)
    weights.update(_weights(loop.state.model))
    by_index = {
        f"{_OPTIMIZERS}{name}/state/{index}": parameter
        for name, optimizer in loop.state.optimizers.items()
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
    """Weights as a model's own are placed; those that do not fit are left, for whoever says so."""
    return {name: _like(value, wanted.get(name)) for name, value in found.items()}


def placed_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an optimizer, each tensor as its parameter is placed."""
    parameters = dict(enumerate(_parameters(optimizer)))
    states = {
        index: {key: _like(value, parameters.get(index)) for key, value in its.items()}
        for index, its in saved["state"].items()
    }
    return {**saved, "state": states}


def placed_state(module: nn.Module, tree: Any) -> Any:
    """The state of a callback: copies and averages of weights, by their names, are placed as those are."""
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
