"""The batches are not leaves of the graph."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import default_collate

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)
encoder = nn.Linear(8, 8)


def collate(samples):
    x, y = default_collate(samples)
    return encoder(x), y


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=collate),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
