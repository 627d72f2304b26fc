"""The last layer is a dropout that drops nothing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)

trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 5), nn.Dropout(0.0)),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
