"""What ranks do in ``test_guide.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

GUIDE = Path(__file__).parents[2] / "docs" / "distributed.md"


def own_strategy(every: int) -> dict[str, Any]:
    """Train with the strategy that the guide shows."""
    found = re.search(
        r"^```python\n(from datetime import timedelta\n[\s\S]*?)^trainer = ", GUIDE.read_text(), re.MULTILINE
    )
    assert found is not None
    names: dict[str, Any] = {"torch": torch}
    exec(found[1], names)
    strategy, model = names["LocalSGD"](every), TinyModel()
    data = tiny_data(batches=10)
    start = [p.detach().clone() for p in model.parameters()]
    trainer = Trainer(max_duration="2ep", folder=False, strategy=strategy)
    result = trainer.fit(model, data, tiny_data(2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    moved = any(not torch.equal(before, now) for before, now in zip(start, model.parameters(), strict=True))
    return {
        "weights": [p.detach().tolist() for p in model.parameters()],
        "moved": moved,
        "step": result.clock.step,
        "loss": result.history["val/loss"],
    }
