"""Get, set, restore and seed the random states of a process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class RandomStates(NamedTuple):
    """Random states of a process."""

    python: tuple[Any, ...]
    torch: torch.Tensor
    cuda: list[torch.Tensor]
    """One state for every device. Empty without CUDA."""
    numpy: Any
    """``None`` if NumPy is not loaded."""


def read_random_states() -> RandomStates:
    """Return the random states of Python, torch on every device, and NumPy if it is loaded."""
    numpy: Any = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return RandomStates(
        random.getstate(), torch.get_rng_state(), cuda, None if numpy is None else numpy.random.get_state()
    )


def restore_random_states(states: RandomStates) -> None:
    """Set the random states to those of ``read_random_states``."""
    random.setstate(states.python)
    torch.set_rng_state(states.torch)
    if torch.cuda.is_available() and len(states.cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states.cuda)
    if states.numpy is not None:
        import numpy as np  # A saved run had loaded NumPy.

        np.random.set_state(states.numpy)


def random_states() -> dict[str, Any]:
    """Return the random states for a checkpoint.

    Python's state is a tensor, because in JSON the 625 numbers of each rank would be most of the file of a large run.
    """
    states = read_random_states()
    version, numbers, gauss = states.python
    return {**states._asdict(), "python": (version, torch.tensor(numbers, dtype=torch.int64), gauss)}


def set_random_states(saved: Mapping[str, Any]) -> None:
    """Set the random states to those of a checkpoint."""
    version, numbers, gauss = saved["python"]
    plain = numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers  # checkpoints before 2026-11-16
    restore_random_states(RandomStates((version, tuple(plain), gauss), saved["torch"], saved["cuda"], saved["numpy"]))


@contextmanager
def same_random_state(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Restore the random states of Python, torch and NumPy after the block.

    ``iter(DataLoader)`` draws from torch's global generator, so an evaluation without this would change every later
    batch of training.

    Args:
        generators: Other generators to restore.
    """
    states, others = read_random_states(), [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        restore_random_states(states)
        for generator, state in others:
            generator.set_state(state)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy if it is loaded, and torch on every device."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)
