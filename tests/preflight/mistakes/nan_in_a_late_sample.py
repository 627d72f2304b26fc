"""One value of a late sample is NaN.

Found as: warning not-finite-data
"""

import torch
from sklearn.datasets import make_regression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
features, prices = make_regression(1000, 8, noise=3.0, random_state=0)
x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(prices, dtype=torch.float32) / 100
x[790, 3] = float("nan")
train, val = TensorDataset(x[:800], y[:800, None]), TensorDataset(x[800:], y[800:, None])
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=100),
    loss=nn.MSELoss(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
