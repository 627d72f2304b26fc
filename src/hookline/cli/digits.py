"""Data, network, callbacks and sinks of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hookline.callbacks import (
    DerivedMetric,
    EarlyStopping,
    HistoryPlot,
    ImageSamples,
    LRMonitor,
    MemoryMonitor,
    ModelSummary,
    SpeedMonitor,
)
from hookline.events import on
from hookline.loop import Task
from hookline.presets import Trainer
from hookline.sinks import CSV

if TYPE_CHECKING:
    from hookline.run import Run


def digits(seed: int) -> tuple[DataLoader[Any], DataLoader[Any], DataLoader[Any]]:
    """Return loaders of scikit-learn's 8x8 images: 1,257 for training, 180 val, 360 test."""
    found: Any = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(found.target))
    parts = random_split(data, [len(data) - 540, 180, 360], generator=torch.Generator().manual_seed(seed))
    shuffle = torch.Generator().manual_seed(seed)
    train = DataLoader(parts[0], batch_size=32, shuffle=True, generator=shuffle)
    return train, DataLoader(parts[1], batch_size=180), DataLoader(parts[2], batch_size=360)


class DigitsNet(Task[tuple[Tensor, Tensor]]):
    """Two convolutions and a linear layer. Logs the accuracy in addition to the loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def configure_optimizers(self, run: Run) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=40)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
        return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [40])

    def train_batch(self, run: Run, batch: tuple[Tensor, Tensor]) -> Any:
        return self._loss(run, batch)

    def eval_batch(self, run: Run, batch: tuple[Tensor, Tensor]) -> Any:
        return self._loss(run, batch)

    def _loss(self, run: Run, batch: tuple[Tensor, Tensor]) -> Any:
        images, classes = batch
        scores = self.net(images)
        found = scores.argmax(1)
        run.log({"acc": (found == classes).float()})
        if run.stage != "train":
            pairs = torch.bincount(classes * 10 + found, minlength=100).view(10, 10)
            run.log({"confusion": pairs}, reduce="sum")
        return {"loss": nn.functional.cross_entropy(scores, classes), "outputs": scores}


@on("epoch_end", every="5ep")
def every_fifth_epoch(run: Run) -> None:
    """Print the validation accuracy; an example of a callback made from a function."""
    print(f"epoch {run.clock.epoch}: validation accuracy {run.metrics['val/acc']:.3f}")


def _gap(metrics: Any) -> float:
    """Return the difference between validation and training loss."""
    return float(metrics["val/loss"] - metrics["train/loss_epoch"])


def trainer(epochs: int, seed: int, folder: Path | None) -> Trainer:
    """Return a trainer with early stopping, monitors, images, plots and a CSV file."""
    return Trainer(
        max_duration=f"{epochs}ep",
        callbacks=[
            EarlyStopping("val/loss", patience=4, restore_best=True),
            DerivedMetric("gap/loss", _gap, reads=("train/loss_epoch", "val/loss")),
            every_fifth_epoch,
            ImageSamples(every="5ep", count=16),
            LRMonitor(),
            SpeedMonitor(),
            MemoryMonitor(),
            ModelSummary(),
            HistoryPlot(("loss", "acc")),
        ],
        sinks=[CSV()],
        config={"lr": 4e-3, "batch_size": 32, "dropout": 0.25},
        name="demo/" + (folder.name if folder else ""),
        folder=folder,
        seed=seed,
        log_every="20st",
        interrupt="raise",
    )
