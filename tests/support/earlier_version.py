"""The run whose checkpoints ``tests/data/earlier-version`` holds: the version before the engine was redrawn saved them.

SIGTERM left ``train`` at step 7 in one process, and at step 3 on two ranks.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Trainer

SAVED = Path(__file__).parents[1] / "data" / "earlier-version"


def data(samples: int, seed: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(samples, 4, generator=generator), torch.randint(0, 3, (samples,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)


def copy_saved(name: str, folder: Path) -> Path:
    """A run of the earlier version that was left, ``"one-process"`` or ``"two-ranks"``, to continue."""
    return Path(shutil.copytree(SAVED / name, folder))


def train(folder: str | Path, resume: str | None = None) -> dict[str, Any]:
    """Train to the end, from the start or from the newest checkpoint in the folder; the outcome."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(
        max_duration="4ep",
        accumulate=2,
        folder=folder,
        resume=resume,
        seed=5,
        device="cpu",
        log_every="2st",
        callbacks=[hl.EMA(0.9)],
    )
    result = trainer.fit(
        model,
        data(40, 1),
        data(12, 2),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    )
    return {
        "clock": [result.clock.epoch, result.clock.step, result.clock.batch, result.clock.sample],
        "rows": [[row.name, row.step] for row in result.history.rows()],
        "values": [float(row.value) for row in result.history.rows()],
        "weights": [value for parameter in model.parameters() for value in parameter.flatten().tolist()],
    }
