"""What ranks do in ``test_callback_package.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hookline as hl
from hookline.testing import tiny_data
from tests.support import at_step, fit, sgd, state_of

PACKAGE = Path(__file__).parents[2] / "examples" / "callback_package" / "src"


def keep_best(folder: str, pause: int = 0, used: bool = False) -> dict[str, Any]:
    """Train with the callback of another package.

    Args:
        folder: Folder of the run.
        pause: Pause after this step and resume.
        used: Train with the same callback before, in another run.
    """
    sys.path.insert(0, str(PACKAGE))
    from keepbest import KeepBest

    options: dict[str, Any] = {
        "train": tiny_data(8),
        "val": tiny_data(4),
        "optimizer": lambda parameters: sgd(parameters, lr=1.0, momentum=0.9),
        "max_duration": "50ep",
        "strategy": "ddp",
        "folder": folder,
    }
    if pause:
        fit(KeepBest(patience=4), hl.Checkpointer("3st"), at_step(pause, lambda run: run.pause("later")), **options)
        options["resume"] = "auto"
    callback = KeepBest(patience=4)
    if used:
        fit(callback, **{**options, "folder": f"{folder}/before"})
    result = fit(callback, hl.Checkpointer("3st"), **options)
    return {
        "best": callback.best,
        "curve": [list(point) for point in callback.curve],
        "losses": result.history["val/loss"],
        "stop": result.stop_reason,
        "steps": result.clock.step,
        "weights": {name: tensor.tolist() for name, tensor in state_of(result.model).items()},
    }
