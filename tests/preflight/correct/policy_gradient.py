"""A policy gradient weights log-probabilities before the NLL loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)


def loss(outputs, targets):
    advantage = torch.randn(len(targets), 1)
    return F.nll_loss(F.log_softmax(outputs, 1) * advantage, targets)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
