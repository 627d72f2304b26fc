"""What ranks do in ``test_ignite.py``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tests.interop.test_ignite import Parts, in_hookline, saver, stop_early


def train(folder: str) -> dict[str, Any]:
    """Validate with an evaluator, stop early and save files, on two ranks."""
    warnings.simplefilter("ignore")
    parts = Parts()
    early = stop_early(parts)
    saver(parts, Path(folder) / "files")
    result = in_hookline(parts, max_duration="20ep")
    return {
        "step": result.clock.step,
        "counter": early.counter,
        "rows": parts.rows,
        "weights": [parameter.double().sum().item() for parameter in parts.model.parameters()],
    }
