"""A task: your own computation for a batch, with metrics, several validation sets and a learning-rate schedule.

python examples/02_task.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

STEPS = 300


class Digits(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )

    def configure_optimizers(self, run):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)

    def train_batch(self, run, batch):
        images, labels = batch
        scores = self.net(images)
        run.log({"acc": scores.argmax(1) == labels})  # one value per sample; train/acc is their mean
        return nn.functional.cross_entropy(scores, labels, label_smoothing=0.05)

    def eval_batch(self, run, batch):
        images, labels = batch
        scores = self.net(images)
        run.log({"acc": scores.argmax(1) == labels})
        return nn.functional.cross_entropy(scores, labels)  # logged as val/<loader>/loss

    def on_eval_end(self, run):  # a task may have any hook
        clean, noisy = run.metrics["val/clean/acc"], run.metrics["val/noisy/acc"]
        print(f"step {run.clock.step}: accuracy {clean:.3f}, with noise {noisy:.3f}")


torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
held_out = TensorDataset(images[1437:], labels[1437:])
noisy = TensorDataset(images[1437:] + 0.2 * torch.randn(360, 1, 8, 8), labels[1437:])
result = hl.fit(
    Digits(),
    DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=32, shuffle=True),
    {"clean": DataLoader(held_out, batch_size=90), "noisy": DataLoader(noisy, batch_size=90)},
    max_duration=f"{STEPS}st",
    eval_every="100st",
    progress=False,
    folder=False,
)
print(f"{result.stop_reason}; training accuracy {result.metrics['train/acc']:.3f}")
