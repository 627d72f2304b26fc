"""A ReLU after the last layer whose outputs are all negative: no gradient reaches the model.

Found as: warning gradients
"""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
points, labels = make_moons(1000, noise=0.2, random_state=0)
x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)[:, None]
train, val = TensorDataset(x[:800], y[:800]), TensorDataset(x[800:], y[800:])
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())
nn.init.constant_(model[2].bias, -9.0)
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=100),
    loss=nn.BCEWithLogitsLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
