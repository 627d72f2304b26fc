"""One label of the last sample is out of range.

Found as: warning loss-target
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
data.tensors[1][-1] = 47
train, val, _ = (torch.utils.data.Subset(data, range(700, 1797)), torch.utils.data.Subset(data, range(700)), None)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
