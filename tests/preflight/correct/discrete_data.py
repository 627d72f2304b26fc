"""Few possible samples, so that training and validation data share some."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
bits = torch.randint(0, 2, (600, 5)).float()
parity = bits.sum(1).long() % 2
model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 2))
trainer = hl.Trainer(max_duration="2ep", progress=False)
trainer.fit(
    model,
    DataLoader(TensorDataset(bits[:500], parity[:500]), batch_size=50, shuffle=True),
    DataLoader(TensorDataset(bits[500:], parity[500:]), batch_size=50),
    loss=nn.CrossEntropyLoss(),
    optimizer=torch.optim.Adam,
)
