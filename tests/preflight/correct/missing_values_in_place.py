"""The forward replaces inputs of NaN in place."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)
x[::9, 2] = float("nan")


class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        x[x.isnan()] = 0.0
        return self.net(x)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    Filled(),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
