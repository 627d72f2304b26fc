"""A custom loop."""

import torch
from sklearn.datasets import make_regression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
features, prices = make_regression(400, 8, noise=3.0, random_state=0)
x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(prices, dtype=torch.float32)[:, None] / 100
model, compute = nn.Linear(8, 1), nn.MSELoss()
with hl.Loop(model, torch.optim.SGD(model.parameters(), lr=0.01), max_duration="3ep") as loop:
    for inputs, targets in loop.batches(DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)):
        loop.backward(compute(model(inputs), targets))
        loop.step()
