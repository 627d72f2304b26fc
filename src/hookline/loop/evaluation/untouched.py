"""What an evaluation must leave as it was: random states, gradients, module modes, grad mode."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def same_random_state(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Put all random states back: Python's, NumPy's if it is loaded, torch's on every device.

    ``iter(DataLoader)`` alone draws from the global one, so an evaluation without this would change
    every later batch of training.
    """
    states = [(generator, generator.get_state()) for generator in generators]
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy: Any = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
        for generator, state in states:
            generator.set_state(state)


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


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy if it is loaded, and torch on every device."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)
