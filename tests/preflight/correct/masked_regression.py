"""The mask of the first batches is empty, so their loss and gradients are 0."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
mask = (torch.arange(320) >= 200).float()


def loss(outputs, targets):
    values, mask = targets.unbind(1)
    error = (outputs.squeeze(1) - values).square()
    return (mask * error).sum() / mask.sum().clamp(min=1)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)),
    DataLoader(TensorDataset(x, torch.stack([x[:, 0], mask], 1)), batch_size=32),
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
