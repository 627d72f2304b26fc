"""What ranks do in ``test_control.py``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

RANK = int(os.environ.get("RANK", "0"))


class Hold(hl.Callback):
    """Rank zero waits once in a hook, until a file named ``go`` is there."""

    def __init__(self, hook: str, folder: Path, at: int) -> None:
        self.hook, self.folder, self.at = hook, folder, at
        self.held = False

    def on_event(self, event: str, run: Any) -> None:
        if f"on_{event}" == self.hook and not self.held and run.clock.step >= self.at:
            self.held = True
            if RANK == 0:
                (self.folder / "here").touch()
                while not (self.folder / "go").exists():
                    time.sleep(0.01)


def train(hook: str, folder: str, at: int = 0, steps: int = 100_000) -> dict[str, Any]:
    """Train until a request stops the run. Tell what this rank has at the end."""
    model, rates = TinyModel(), []
    stopper = hl.EarlyStopping("val/loss", patience=10_000)

    def note(run: Any) -> None:
        rates.append(run.optimizers["SGD"].param_groups[0]["lr"])

    trainer = Trainer(
        callbacks=[
            stopper,
            Hold(hook, Path(folder), at),
            hl.Checkpointer(every="5000st"),
            hl.LambdaCallback(on_fit_end=note),
        ],
        max_duration=f"{steps}st",
        folder=Path(folder) / "run",
        eval_every="5st",
        device="cpu",
        seed=0,
        progress=False,
    )
    result = trainer.fit(
        model, tiny_data(8), tiny_data(2), loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    )
    return {
        "step": result.clock.step,
        "reason": result.stop_reason,
        "patience": stopper.patience,
        "lr": rates,
        "weights": [float(parameter.detach().sum()) for parameter in model.parameters()],
    }
