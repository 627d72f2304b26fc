"""Updates that the body drives itself: of one of several optimizers, or of one with a closure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hookline.errors import ScopeError, SetupError
from hookline.loop.model.gradients import clear_gradients
from hookline.loop.model.optimizers import name_of
from hookline.loop.tasks.returned import check_returned
from hookline.run.state import MISSING

if TYPE_CHECKING:
    from hookline.loop.engine.step import Steps


def step_inside_batch(steps: Steps, optimizer: Any, closure: Callable[[], Any] | None) -> bool:
    """One of several optimizers, or one with a closure (LBFGS), which computes its loss several times."""
    name = name_of(optimizer, steps.state.optimizers)
    moved = False
    if closure is not None:
        if not steps._bare:
            raise SetupError(
                "an optimizer with a closure computes its loss again: use accumulate=1, no fp16 and one process"
            )
        steps._driven[name] = False
        moved = steps._update(name, partial(_compute_again, steps, name, closure))
    elif not steps._window_full:
        steps._driven[name] = False
        return False
    elif name not in steps._touched:
        raise ScopeError(f"loop.step({name}): there was no loop.backward(loss, optimizer) for it in this step")
    else:
        steps._driven.setdefault(name, False)
        steps._touched[name] = steps.world.average_weight(steps._touched[name])
        moved = steps._update(name)
    steps._driven[name] |= moved
    for counted in (steps._touched, steps._weighed):
        counted.pop(name, None)
    return moved


def _compute_again(steps: Steps, name: str, compute: Callable[[], Any]) -> Any:
    """What an optimizer such as LBFGS calls: zero_grad, forward, backward, gradients_ready."""
    clear_gradients(steps.state.optimizers[name])
    steps._touched.pop(name, None)  # with its gradients: this loss is computed anew, and is not a second one
    torch.clear_autocast_cache()
    with steps.precision.autocast(enabled=steps.precision.dtype is not None):
        steps.state.loss = MISSING  # the outputs of this forward can be replaced
        found = compute()
    if isinstance(found, dict):
        check_returned("train_batch", found)
        steps.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
    else:
        steps.backward(found)
    steps.line.emit(steps.line.hooks.gradients_ready)
    return steps.state.loss
