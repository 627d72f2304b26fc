# %% [markdown]
# # Resume after preemption on Slurm
#
# You write a training script that a Slurm cluster can stop at any time. Slurm sends a signal, Hookline
# saves, the job enters the queue again, and the next start continues. You send the signal yourself,
# start the script again, and compare every bit with a run that was never stopped.
#
# ## Write the script
#
# Save all cells of this page as `resume_on_slurm.py`, or download the script at the end of the page.

# %%
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

folder = os.environ.get("FOLDER", "runs/never-stopped")

images, labels = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 by 8 pixels
inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train_loader = DataLoader(TensorDataset(inputs[:1437], targets[:1437]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(inputs[1437:], targets[1437:]), batch_size=360)

torch.manual_seed(0)  # the same first weights at every start
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))

# %% [markdown]
# Three arguments make the run resumable:
#
# - `folder` is the same at every start. On a cluster it is on a shared file system.
# - `resume="auto"` continues from the newest checkpoint, if there is one.
# - `Checkpointer` saves every 100 steps. The signal causes one more checkpoint.
#
# `StopOnSignal` adds the signal SIGUSR1 to SIGTERM, which every run obeys. `requeue="slurm"` puts the
# job back into the queue after the checkpoint is on the disk.

# %%
result = hl.fit(
    model,
    train_loader,
    val_loader,
    loss=nn.CrossEntropyLoss(),
    optimizer=torch.optim.AdamW,
    max_duration="40ep",
    seed=0,
    folder=folder,
    resume="auto",
    callbacks=[
        hl.Checkpointer("100st"),
        hl.StopOnSignal("SIGUSR1", requeue="slurm" if "SLURM_JOB_ID" in os.environ else None),
    ],
)
print(result.stop_reason, "at step", result.clock.step)

# %% [markdown]
# This was the run that is never stopped.
#
# ## Write the job
#
# ```sh
# #!/usr/bin/env bash
# #SBATCH --time=04:00:00
# #SBATCH --signal=USR1@120    # SIGUSR1 to each process, two minutes before the time limit
# #SBATCH --requeue            # allow the job to enter the queue again
# #SBATCH --open-mode=append   # one log for all starts
#
# export FOLDER=runs/digits
# srun python resume_on_slurm.py
# ```
#
# Choose a time before the limit that is longer than one step and one save. For several GPUs and
# machines, start from `examples/distributed/slurm.sh` in the repository.
#
# ## Stop it
#
# You need no cluster to see what happens. Slurm sends SIGTERM to a job that it preempts. This does the
# same as soon as the first checkpoint exists:

# %%
# !export FOLDER=runs/preempted
# !python resume_on_slurm.py > first-start.log 2>&1 &
# !until [ -e $FOLDER/checkpoints/step-00000100 ]; do sleep 0.05; done
# !kill -TERM $!
# !wait $!
# !echo "exit code $?"
# !tail -n 1 first-start.log
# !ls $FOLDER/checkpoints

# %% [markdown]
# Hookline finished the step, saved it, and left with 128 + 15, the exit code of a process that SIGTERM
# has ended.
#
# ## Start it again
#
# The job that comes out of the queue runs the same command:

# %%
# !export FOLDER=runs/preempted
# !python resume_on_slurm.py > second-start.log 2>&1
# !grep resumed second-start.log
# !tail -n 1 second-start.log

# %% [markdown]
# ## Compare every bit
#
# The last checkpoint of a run has the weights in `model.safetensors`, and the optimizer state in
# `state.safetensors`. The files of both runs are equal, byte for byte:

# %%
# !for file in model.safetensors state.safetensors; do
# !    cmp runs/{preempted,never-stopped}/checkpoints/step-00001800/$file && echo "$file is equal"
# !done

# %% [markdown]
# ## Check your own script
#
# One command trains your script for twenty steps, trains it again with a kill after ten steps, resumes
# it, and compares everything that was saved:

# %%
# !hookline verify-resume resume_on_slurm.py 2>/dev/null

# %% [markdown]
# ## What was tested
#
# The tests of Hookline run this page as you see it: SIGTERM, a restart, and a comparison of every bit.
# They also run `examples/distributed/slurm.sh` with replacements for `srun` and `scontrol`. No test
# runs on a Slurm cluster.
#
# ## Where to go next
#
# - [Checkpoints, resume and signals](../checkpoints.md): exit codes, Kubernetes, what is exact
# - [`StopOnSignal`](../callbacks/stop_on_signal.md), [`Checkpointer`](../callbacks/checkpointer.md),
#   [`TimeLimit`](../callbacks/time_limit.md)
# - [Train with several processes](several_processes.md): all ranks save together
