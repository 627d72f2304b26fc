"""What ranks do in ``test_keras.py``."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

from tests.interop.test_keras import in_hookline, of


def train(folder: str) -> dict[str, Any]:
    """Lower the learning rate, stop early, restore the best weights, print and write a file, on two ranks."""
    warnings.simplefilter("ignore")
    early = of.EarlyStopping("val_loss", min_delta=0.05, patience=2, restore_best_weights=True)
    plateau, history = of.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05), of.History()
    writer, text = of.CSVLogger(Path(folder) / "log.csv"), io.StringIO()
    with contextlib.redirect_stdout(text):
        callbacks = [early, plateau, history, writer, of.ProgbarLogger()]
        model, result = in_hookline(callbacks, Path(folder) / "run", max_duration="12ep")
    return {
        "step": result.clock.step,
        "stopped": early.stopped_epoch,
        "rate": float(plateau.model.optimizer.learning_rate),
        "history": history.history,
        "output": ["Epoch 1/12" in text.getvalue(), writer.keys is not None],
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
