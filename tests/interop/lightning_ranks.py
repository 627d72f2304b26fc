"""What ranks do in ``test_lightning.py``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tests.interop.test_lightning import in_hookline


def train(folder: str) -> dict[str, Any]:
    """Stop early, average the weights and save files, on two ranks."""
    warnings.simplefilter("ignore")
    from lightning.pytorch import callbacks as of

    saver = of.ModelCheckpoint(Path(folder) / "files", "best", monitor="val_loss")
    early = of.EarlyStopping("val_loss", min_delta=0.2, patience=1)
    model, result = in_hookline(
        [early, saver, of.EMAWeightAveraging(decay=0.7), of.Timer("01:00:00:00")],
        Path(folder) / "run",
        max_duration="9ep",
    )
    return {
        "step": result.clock.step,
        "wait": early.wait_count,
        "files": sorted(path.name for path in (Path(folder) / "files").iterdir()),
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
