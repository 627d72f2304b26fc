"""Your own loop: you keep it, the callbacks attach to it. Accumulation and evaluation are one line each.

python examples/03_own_loop.py
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
loss_function = nn.MSELoss()


class Slope(hl.Callback):
    """How large the gradients are, just before each update."""

    def on_gradients_ready(self, run):
        run.log({"grad_norm": nn.utils.get_total_norm([p.grad for p in run.model.parameters() if p.grad is not None])})


with hl.Loop(
    model,
    optimizer,
    callbacks=[Slope(), hl.EarlyStopping("val/loss", patience=5)],
    max_duration="60ep",
    eval_every="1ep",
    accumulate=2,
    folder=False,
) as loop:
    for inputs, targets in loop.batches(train):
        loop.backward(loss_function(model(inputs), targets))
        loop.step()
        if loop.eval_due:
            for inputs, targets in loop.eval_batches(val):
                loop.run.log({"loss": loss_function(model(inputs), targets)}, weight=len(targets))

result = loop.result()
print(f"{result.clock.epoch} epochs of {result.clock.step // result.clock.epoch} steps: {result.stop_reason}")
print(f"validation: {result.history['val/loss'][0]:.3f} -> {min(result.history['val/loss']):.3f} (1 is the mean's)")
print(f"gradient norm: {result.history['train/grad_norm_epoch'][0]:.3f} in the first epoch")
