"""Two processes; a callback with ranks = "zero" runs in the first one only.

python examples/from-the-seeds/first_process_only.py
"""

import os
import tempfile

import torch
from torch import distributed, nn

import hookline as hl


class FirstProcessOnly(hl.Callback):
    ranks = "zero"

    def on_train_start(self, run):
        print(f"first process only: process {run.rank} of {run.world_size}", flush=True)


class EveryProcess(hl.Callback):  # the default: ranks = "all"
    def on_train_start(self, run):
        print(f"every process: process {run.rank} of {run.world_size}", flush=True)


def train(rank, meeting_point):
    os.environ["LOCAL_RANK"] = str(rank)
    distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    data = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(5)]
    with hl.Loop(
        model := nn.Linear(8, 2),
        torch.optim.SGD(model.parameters()),
        callbacks=[FirstProcessOnly(), EveryProcess()],
        max_duration="1ep",
        folder=False,
    ) as loop:
        for x, y in loop.batches(data):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, args=(f"{folder}/meeting_point",), nprocs=2)
