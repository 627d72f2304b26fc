"""What ranks do in ``test_torchtnt_units.py``."""

from __future__ import annotations

import warnings
from typing import Any


def train(accumulate: int) -> dict[str, Any]:
    """Train an ``AutoUnit`` on two ranks."""
    warnings.simplefilter("ignore")
    from tests.interop.test_torchtnt_units import auto_unit, here, without_norm

    unit = auto_unit(module=without_norm(), clip_grad_norm=0.1, gradient_accumulation_steps=accumulate)
    result = here(unit, accumulate=accumulate)
    return {
        "step": result.clock.step,
        "weights": [parameter.double().flatten().tolist() for parameter in unit.module.parameters()],
        "norms": [None if norm is None else float(norm) for norm in unit.norms],
    }
