"""Keep gradients and module modes as they were before an evaluation or a trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def same_modes(module: nn.Module) -> Iterator[None]:
    """Restore the train or eval mode of every submodule after the block.

    Each submodule has its own mode: a frozen batch norm stays frozen.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def same_gradients(module: nn.Module) -> Iterator[None]:
    """Remove the gradients inside the block, and restore them after it.

    A hook may enable gradients and call backward in an evaluation.
    """
    held = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, gradient in held:
        if gradient is not None:
            parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
