"""Targets of NaN are replaced in place."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, 0].clone()
y[::5] = float("nan")


class Filled(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        x, y = batch
        y[y.isnan()] = 0
        return F.mse_loss(self.net(x).squeeze(1), y)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(Filled(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
