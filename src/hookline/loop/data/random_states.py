"""Get, set, restore and seed the random states of a process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    """Return the random states of Python, torch on every device, and NumPy if it is loaded."""
    numpy: Any = sys.modules.get("numpy")
    return {
        "python": _packed(*random.getstate()),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": numpy.random.get_state() if numpy else None,
    }


def _packed(version: int, numbers: tuple[int, ...], gauss: float | None) -> tuple[int, torch.Tensor, float | None]:
    """Return Python's state with a tensor of numbers.

    In JSON, the 625 numbers of each rank would be most of the file of a large run.
    """
    return version, torch.tensor(numbers, dtype=torch.int64), gauss


def set_random_states(saved: Mapping[str, Any]) -> None:
    """Set the random states to those of ``random_states``."""
    version, numbers, gauss = saved["python"]
    plain = numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers  # checkpoints before 2026-11-16
    random.setstate((version, tuple(plain), gauss))
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available() and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
    if saved["numpy"] is not None:
        import numpy as np  # The saved run had loaded NumPy.

        np.random.set_state(saved["numpy"])


@contextmanager
def same_random_state(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Restore the random states of Python, torch and NumPy after the block.

    Torch has a state for every device. NumPy counts if it is loaded.

    ``iter(DataLoader)`` draws from torch's global generator, so an evaluation without this would change every later
    batch of training.

    Args:
        generators: Other generators to restore.
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


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy if it is loaded, and torch on every device."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % 2**32)
