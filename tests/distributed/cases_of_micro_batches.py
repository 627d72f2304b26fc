"""What ranks do in ``test_micro_batches.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import MicroBatches
from hookline.distributed import this_process
from hookline.errors import SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel


class Hungry(TinyModel):
    """Has memory for 5 samples on rank 0 and for 2 on rank 1."""

    limited = True

    def forward(self, x: Tensor) -> Tensor:
        if self.limited and self.training and len(x) > (5, 2)[this_process().rank]:
            torch.empty(1 << 55)
        return super().forward(x)


def pieces(strategy: Any) -> dict[str, Any]:
    """The size that this rank has found, and the weights with pieces and with enough memory."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(3, (40,))), batch_size=8)
    found: dict[str, Any] = {}
    for limited in (True, False):
        model, micro = Hungry(), MicroBatches()
        model.limited = limited
        trainer = Trainer(max_duration="2ep", callbacks=[micro], folder=False, strategy=strategy, seed=1)
        trainer.fit(
            model, loader, loss=nn.CrossEntropyLoss(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5)
        )
        found[f"limited {limited}"] = [round(float(p.detach().double().sum()), 5) for p in model.parameters()]
        found[f"size {limited}"] = micro.size
    return found


def synchronized() -> str:
    """The error of a model whose batch norms wait for all ranks."""
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(3, (40,))), batch_size=8)
    model = nn.Sequential(nn.Linear(4, 8), nn.SyncBatchNorm(8), nn.Linear(8, 3))
    trainer = Trainer(max_duration="1ep", callbacks=[MicroBatches(4)], folder=False, preflight=False)
    try:
        trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    except SetupError as error:
        return str(error)
    return ""
