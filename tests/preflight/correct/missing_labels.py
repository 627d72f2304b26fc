"""Labels of -1 are unknown, and masked after a loss without a reduction."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = torch.randint(-1, 2, (320, 5)).float()


def loss(outputs, targets):
    each = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return each[targets >= 0].mean()


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
