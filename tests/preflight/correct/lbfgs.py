"""The first updates of LBFGS may raise the loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)

trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=nn.CrossEntropyLoss(),
    optimizer=torch.optim.LBFGS,
)
