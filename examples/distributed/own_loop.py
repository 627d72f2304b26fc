"""Your own loop, written for one process, in many: the same lines, and ``model(x)`` is the synchronised one.

python examples/distributed/own_loop.py
torchrun --standalone --nproc-per-node 2 examples/distributed/own_loop.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
table = load_diabetes()  # ten measurements of 442 patients, and how the illness went on
x = torch.tensor(table.data, dtype=torch.float32)
y = torch.tensor(table.target, dtype=torch.float32)[:, None]
x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
train = DataLoader(TensorDataset(x[:354], y[:354]), batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(x[354:], y[354:]), batch_size=44)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
loss_of = nn.MSELoss()

stopper = hl.EarlyStopping("val/loss", patience=5)  # it reads the loss of all ranks, so all of them stop together
with hl.Loop(model, optimizer, callbacks=[stopper], max_duration="60ep", eval_every="1ep", folder=False) as loop:
    for inputs, targets in loop.batches(train):  # each rank gets its part
        loop.backward(loss_of(model(inputs), targets))  # gradients are averaged here
        loop.step()
        if loop.eval_due:
            for inputs, targets in loop.eval_batches(val):  # each sample once, on some rank
                loop.run.log({"loss": loss_of(model(inputs), targets)}, weight=len(targets))

result = loop.result()
if loop.run.rank == 0:
    print(f"{loop.run.world_size} processes, {result.clock.step} steps: {result.stop_reason}")
    print(f"validation: {result.history['val/loss'][0]:.3f} -> {min(result.history['val/loss']):.3f} (1 is the mean's)")
