"""The parameters of an optimizer that was made before the model was sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hookline.errors import SetupError


def rebind(given: Any, replaced: Mapping[Tensor, Tensor]) -> None:
    """Replace the parameters of optimizers, in place.

    Without it, an optimizer would silently update tensors that the model does not use any more.

    Args:
        given: An optimizer, or a mapping, list or tuple of optimizers. Other values are ignored.
        replaced: The new parameter for each parameter that was replaced.

    Raises:
        SetupError: If an optimizer has made steps already.
    """
    for optimizer in _instances(given) if replaced else ():
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if not any(parameter in replaced for parameter in held):
            continue
        if optimizer.state:
            raise SetupError(
                f"{type(optimizer).__name__} has made steps before the model was sharded, and its state is of the "
                f"full parameters; make a new one, or resume from a checkpoint with resume="
            )
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]


def _instances(given: Any) -> Iterable[Optimizer]:
    if isinstance(given, Optimizer):
        return [given]
    values = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    return [value for value in values if isinstance(value, Optimizer)]
