"""What an evaluation must leave as it was: gradients and module modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def same_modes(module: nn.Module) -> Iterator[None]:
    """Put the train or eval mode of every sub-module back: a frozen batch norm stays frozen."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def same_gradients(module: nn.Module) -> Iterator[None]:
    """Set the gradients aside: a hook may enable gradients and call backward in an evaluation."""
    held = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, gradient in held:
        if gradient is not None:
            parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
