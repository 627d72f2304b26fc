"""What ranks do in ``test_torchtnt.py`` and ``test_torchtnt_units.py``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch


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


def train_with_callbacks(folder: str) -> dict[str, Any]:
    """Stop early and save files, on two ranks."""
    warnings.simplefilter("ignore")
    from tests.interop.test_torchtnt import checker, in_hookline, of

    torch.distributed.init_process_group("gloo")  # The saver sends its folder to the other ranks when it is made.
    early = of.EarlyStopping("val_loss", checker(min_delta=0.15))
    saver = of.DistributedCheckpointSaver(str(Path(folder) / "files"), save_every_n_epochs=1)
    model, result = in_hookline([early, saver], max_duration="9ep")
    return {
        "step": result.clock.step,
        "patience": early._esc.state_dict()["patience_count"],
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
