"""One script for one process or many, which can be killed at any moment and started again, also with more or fewer.

python examples/distributed/train.py runs/digits
torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/distributed/train.py runs/digits [--fsdp]
"""

import os
import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

temporary = tempfile.TemporaryDirectory()  # without a folder of yours: gone at the end
folder = next((word for word in sys.argv[1:] if not word.startswith("-")), temporary.name)

torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
train, val = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


class Hits(hl.Callback):
    """The share of right answers, over all samples of all ranks."""

    writes = ("val/hits",)

    def on_eval_batch_end(self, run):
        run.log({"hits": (run.outputs.argmax(-1) == run.batch[1]).float()})


@hl.on("fit_end", ranks="zero")  # one of them is enough to say it
def say(run):
    print(f"{run.world_size} processes, {run.clock.step} steps, {run.clock.sample} samples")
    print(f"hits on 360 held-out digits: {run.metrics['val/hits']:.3f}", flush=True)


trainer = hl.Trainer(
    max_duration="20ep",
    folder=folder,
    resume="auto",  # after a restart, and after Slurm has put the job back into its queue
    seed=0,
    strategy="fsdp" if "--fsdp" in sys.argv else "auto",
    callbacks=[
        hl.Checkpointer(every="50st", keep_last=2),
        hl.StopOnSignal("SIGUSR1", requeue="slurm" if "SLURM_JOB_ID" in os.environ else None),
        hl.SlowRankMonitor(),
        Hits(),
        say,
    ],
    progress=False,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer.fit(
    model, DataLoader(train, 32, shuffle=True), DataLoader(val, 90), loss=nn.CrossEntropyLoss(), optimizer=optimizer
)
