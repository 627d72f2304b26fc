"""What ranks do in ``test_pytorch_accelerated.py``."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.interop.test_pytorch_accelerated import in_hookline, of


class Gather(of.TrainerCallback):  # type: ignore[misc]
    def on_training_run_start(self, trainer: Any, **given: Any) -> None:
        rank = trainer._accelerator.process_index
        self.found = trainer.gather(torch.full((rank + 1,), rank), padding_value=-1).tolist()


def train(folder: str) -> dict[str, Any]:
    """Stop early, average the weights and save files, on two ranks."""
    warnings.simplefilter("ignore")
    gather, text = Gather(), io.StringIO()
    callbacks = [
        of.EarlyStoppingCallback(1, 0.2),
        of.SaveBestModelCallback(str(Path(folder) / "best.pt")),
        of.ModelEmaCallback(0.6, save_path=str(Path(folder) / "ema.pt")),
        of.PrintProgressCallback,
        gather,
    ]
    with contextlib.redirect_stdout(text):
        model, result = in_hookline(callbacks, Path(folder) / "run", max_duration="9ep")
    return {
        "step": result.clock.step,
        "gathered": gather.found,
        "printed": "Starting training run" in text.getvalue(),
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }
