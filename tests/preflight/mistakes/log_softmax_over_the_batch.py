"""The log-softmax is over the batch dimension.

Found as: warning loss-input
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10), nn.LogSoftmax(dim=0))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=64),
    loss=nn.NLLLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
