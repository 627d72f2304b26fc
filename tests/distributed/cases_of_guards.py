"""What ranks do in ``test_spikes.py``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Trainer

RANK = int(os.environ.get("RANK", "0"))


def train(callback: str, bad: float, planted: list[int], leave_out: bool, folder: str, strategy: str) -> dict[str, Any]:
    """Batches of four samples; the planted ones hold a value that is far off, or are not there at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    x, y = torch.randn(96, 6), torch.randn(96, 1)
    groups = {number - number % 2 for number in planted}  # two ranks: a step takes two batches
    for number in planted:
        y[4 * number : 4 * number + 4] = bad
    kept = [i for i in range(96) if not (leave_out and i // 8 * 2 in groups)]
    loader = DataLoader(TensorDataset(x[kept], y[kept]), batch_size=4)
    guards = {"SpikeGuard": hl.SpikeGuard(warmup=4), "StopOnNaN": hl.StopOnNaN()}
    callbacks = [] if leave_out else [guards[callback]]
    trainer = Trainer(max_duration="1ep", folder=Path(folder) / "run", callbacks=callbacks, strategy=strategy)
    result = trainer.fit(model, loader, loss=nn.MSELoss(), optimizer=torch.optim.AdamW)
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update((value.full_tensor() if hasattr(value, "full_tensor") else value).numpy().tobytes())
    return {"weights": found.hexdigest(), "step": result.clock.step, "reason": result.stop_reason}
