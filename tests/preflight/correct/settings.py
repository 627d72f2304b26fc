"""A loss reads settings from a global dict and a global object."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

SETTINGS, ARGUMENTS = {"weight": 0.5}, SimpleNamespace(smoothing=0.1)
torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)


def loss(outputs, targets):
    return SETTINGS["weight"] * F.cross_entropy(outputs, targets, label_smoothing=ARGUMENTS.smoothing)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Linear(8, 5), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), loss=loss, optimizer=torch.optim.Adam
)
