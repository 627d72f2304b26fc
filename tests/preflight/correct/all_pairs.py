"""A loss over all pairs of a batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)


def loss(outputs, targets):
    distance = (outputs.view(-1, 1) - targets.view(1, -1)).abs()
    return distance.min(0).values.mean() + distance.min(1).values.mean()


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)),
    DataLoader(TensorDataset(x, x[:, 0].contiguous()), batch_size=32, shuffle=True),
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
