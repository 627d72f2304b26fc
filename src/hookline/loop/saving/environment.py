"""What must be the same for a resume to be bitwise the same."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine


def environment(loop: Engine) -> dict[str, Any]:
    """What must be the same for a resume to be bitwise the same."""
    from hookline import __version__

    return {
        "hookline": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": loop.state.device.type,
        "threads": torch.get_num_threads(),
        "world_size": loop.state.world_size,
        "precision": loop.settings.precision,
        "accumulate": loop.settings.accumulate,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
