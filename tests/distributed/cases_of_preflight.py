"""Runs with and without a pre-flight, on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookline.distributed import this_process
from hookline.errors import StopTraining
from hookline.events import on
from hookline.loop import Trainer


def data(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x))))


def both(strategy: str, accumulate: int) -> list[Any]:
    """Weights and rows of a run without and with a pre-flight."""
    found = []
    for preflight in (False, True):
        torch.manual_seed(3)
        model = Net()
        trainer = Trainer(
            max_duration="2ep",
            device="cpu",
            folder=False,
            seed=0,
            strategy=strategy,
            accumulate=accumulate,
            preflight=preflight,
            log_every="1st",
        )
        result = trainer.fit(
            model,
            DataLoader(data(100, 0), batch_size=8, shuffle=True),
            DataLoader(data(30, 1), batch_size=8),
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.AdamW,
        )
        weights = [getattr(p, "full_tensor", lambda p=p: p)().double().flatten().tolist() for p in model.parameters()]
        rows = {name: list(series) for name, series in result.history.items() if "loss" in name}
        found.append([weights, rows, torch.rand(2).tolist()])
    return found


def mistake_on_one_rank() -> str:
    """The error of labels that are out of range on rank 1 only, whose data is its own."""
    labels = data(64, 0).tensors[1] + (this_process().rank == 1)
    dataset = TensorDataset(data(64, 0).tensors[0], labels)
    loader: Any = DataLoader(dataset, batch_size=8)
    loader.dataset.sharded = True
    try:
        Trainer(max_duration="1ep", device="cpu", folder=False, preflight="strict").fit(
            Net(), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ends_early_on_one_rank(how: str) -> list[Any]:
    """Steps and weights of a run whose trial ends early on rank 1."""

    class Ends(Net):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            if this_process().rank == 1 and not is_training:
                raise {"stop": StopTraining("enough"), "memory": torch.OutOfMemoryError("CUDA out of memory")}[how]
            return found

    is_training: list[int] = []  # No hook runs in a trial.
    torch.manual_seed(3)
    model = Ends()
    loader = DataLoader(data(64, 0), batch_size=8)
    trainer = Trainer(
        max_duration="1ep",
        device="cpu",
        folder=False,
        preflight=True,
        callbacks=[on("train_start")(lambda run: is_training.append(1))],
    )
    result = trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    return [result.clock.step, *(parameter.tolist() for parameter in model.parameters())]
