"""What ranks do in ``test_transformers.py``."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

from tests.interop.test_transformers import Recorder, hf, in_hookline, integration_utils


def train(folder: str) -> dict[str, Any]:
    """Stop early, print and write the files of TensorBoard, on two ranks."""
    warnings.simplefilter("ignore")
    early, recorder, text = hf.EarlyStoppingCallback(1, 0.2), Recorder(), io.StringIO()
    callbacks = [early, recorder, hf.PrinterCallback, integration_utils.TensorBoardCallback]
    with contextlib.redirect_stdout(text):
        model, result = in_hookline(callbacks, Path(folder) / "run", max_duration="9ep")
    return {
        "step": result.clock.step,
        "counter": early.early_stopping_patience_counter,
        "rows": recorder.rows,
        "printed": text.getvalue().count("'eval_loss'"),
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
