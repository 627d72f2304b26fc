"""The forward replaces unknown tokens in place."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x, y = torch.randint(0, 50, (320, 6)), torch.randint(0, 5, (320,))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(30, 16), nn.Linear(16, 5)

    def forward(self, tokens):
        tokens[tokens >= 30] = 29
        return self.last(self.embed(tokens).mean(1))


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    Bag(),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
