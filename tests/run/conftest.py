"""A real run, small enough to be made hundreds of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookline.loop import Result, Trainer
from hookline.testing import TinyModel, tiny_data


@pytest.fixture(scope="session")
def fit() -> Callable[..., Result]:
    """``fit(callback, …, max_duration="2ep")``: two epochs of four batches with an evaluation each."""

    def run(*callbacks: Any, model: nn.Module | None = None, val: Any = None, **options: Any) -> Result:
        options = {"max_duration": "2ep", "folder": False, "device": "cpu"} | options
        return Trainer(callbacks=callbacks, **options).fit(
            TinyModel() if model is None else model,
            tiny_data(),
            tiny_data(batches=2) if val is None else val,
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD,
            scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        )

    return run
