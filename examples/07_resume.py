"""A run that can be killed at any moment: start it again with the same folder, and it ends with the same weights.

python examples/07_resume.py runs/digits
"""

import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

temporary = tempfile.TemporaryDirectory()  # without a folder of yours: gone at the end
folder = sys.argv[1] if len(sys.argv) > 1 else temporary.name

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
train, val = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


@hl.on("checkpoint_loaded")
def say_where(run: hl.Run) -> None:
    print(f"going on from {run.checkpoint.name}")


@hl.on("epoch_end", every="5ep")
def show(run: hl.Run) -> None:
    print(f"epoch {run.clock.epoch}: val {run.metrics['val/loss']:.3f}", flush=True)


trainer = hl.Trainer(
    max_duration="20ep",
    folder=folder,
    resume="auto",  # go on if there is something to go on from, else begin
    seed=0,
    callbacks=[
        hl.Checkpointer(every="50st", monitor="val/loss", keep_last=2),
        hl.StopOnSignal("SIGUSR1"),  # SIGTERM is always listened to: it saves, and exits with 143
        say_where,
        show,
    ],
    progress=False,
)
result = trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=180),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
)
print(f"{result.stop_reason} after {result.clock.step} steps; the best is {result.best_checkpoint}")
print(f"weights: {sum(parameter.double().sum() for parameter in model.parameters()):.12f}")
print(f"val/loss at the end: {result.metrics['val/loss']:.3f}")
