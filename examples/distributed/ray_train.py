"""The same training under Ray Train: Ray starts the processes and sets up their group, Hookline uses it and leaves it.

pip install 'hookline[ray]'; python examples/distributed/ray_train.py
"""

import ray.train
import torch
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl


def train_on_each_worker(config):
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, val = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    class Report(hl.Callback):
        """On all ranks: Ray waits for the report of each worker."""

        def on_epoch_end(self, run):
            ray.train.report({"epoch": run.clock.epoch, "val_loss": run.metrics["val/loss"]})

    @hl.on("fit_end", ranks="zero")
    def say(run):
        print(f"{run.world_size} workers, {run.clock.epoch} epochs, val/loss {run.metrics['val/loss']:.3f}", flush=True)

    trainer = hl.Trainer(
        max_duration=config["epochs"],
        callbacks=[Report(), say],
        progress=False,
        device=ray.train.torch.get_device(),
        folder=False,
    )
    # No prepare_model, no prepare_data_loader: they would wrap and split what Hookline spreads itself.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer.fit(model, DataLoader(train, 32), DataLoader(val, 90), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_on_each_worker,
        train_loop_config={"epochs": "10ep"},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    )
    trainer.fit()  # raises if a worker fails
