# %% [markdown]
# # Train with several processes
#
# You train one script in one process, and then the same script in two processes with `torchrun`. The
# processes share the work of each step, save one checkpoint together, and agree when to stop. This
# page uses the CPU. On a machine with several GPUs, the same commands use one GPU per process.
#
# ## Write the script
#
# Save all cells of this page as `several_processes.py`, or download the script at the end of the page.
# Nothing in it is special for several processes.

# %%
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

SAMPLES_PER_STEP = 32

processes = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
images, labels = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 by 8 pixels
inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train_set, val_set = TensorDataset(inputs[:1437], targets[:1437]), TensorDataset(inputs[1437:], targets[1437:])
train_loader = DataLoader(train_set, batch_size=SAMPLES_PER_STEP // processes, shuffle=True)
val_loader = DataLoader(val_set, batch_size=64)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

# %% [markdown]
# `batch_size` is the number of samples of one process. The division keeps the number of samples of a
# step: 32, with any number of processes.
#
# ## Choose the callbacks
#
# - `Metrics` measures the accuracy over the samples of all processes.
# - `EarlyStopping` reads the loss of all processes, so that all of them stop at the same step.
# - `Checkpointer` writes one checkpoint for all processes.
# - A callback with `ranks="zero"` runs in the first process only.


# %%
def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).float()


@hl.on("fit_end", ranks="zero")
def show(run):
    clock, metrics = run.clock, run.metrics
    print(f"processes: {run.world_size}, steps: {clock.step}, samples: {clock.sample}")
    print(f"loss {metrics['val/loss']:.4f}, accuracy {metrics['val/acc']:.4f}", flush=True)


# %% [markdown]
# ## Train in one process
#
# Hookline reads from the environment how many processes there are, and starts none itself.

# %%
result = hl.fit(
    model,
    train_loader,
    val_loader,
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
    max_duration="8ep",
    seed=0,
    folder=f"runs/with-{processes}",
    callbacks=[hl.Metrics({"acc": accuracy}), hl.EarlyStopping("val/loss", patience=3), hl.Checkpointer("1ep"), show],
)

# %% [markdown]
# ## Train in two processes
#
# `torchrun` starts the script twice and connects the two processes.

# %%
# !torchrun --standalone --nproc-per-node 2 several_processes.py 2>/dev/null | grep -A1 processes:

# %% [markdown]
# The steps and samples are the same, and so is the order of the data. The gradient of a step is the
# mean over the same 32 samples. Only the order of the additions differs, so the results agree up to
# rounding. Progress bar, files and report come from the first process.
#
# ## Compare the runs
#
# `hookline ls` lists the runs of a folder. `hookline compare runs/with-1 runs/with-2` also shows the
# settings that differ.

# %%
# !hookline ls runs

# %% [markdown]
# ## Large models
#
# The default is DDP: each process holds the complete model. With `strategy="fsdp"`, each process
# holds a shard of the weights, the gradients and the optimizer state. Nothing else changes in the
# script, and a run that was saved with DDP can resume with FSDP.
#
# Tested here: processes on one Linux machine, on the CPU, with gloo. GPUs with NCCL are written but
# were never run.
#
# ## Where to go next
#
# - [Several processes](../distributed.md): data, metrics, failures, hangs, two machines
# - [Resume a run after preemption](resume_on_slurm.md)
# - [Concepts: ranks](../concepts/ranks.md)
