"""Pixels are divided by 255 twice.

Found as: warning input-scale
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
images = (torch.tensor(digits.images)[:, None] * 15.9375).floor().float() / 255
data = TensorDataset(images / 255, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
