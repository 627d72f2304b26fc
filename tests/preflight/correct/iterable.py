"""An IterableDataset without a length."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hookline as hl


class Parabola(IterableDataset):
    def __iter__(self):
        for index in range(200):
            x = torch.linspace(-1, 1, 200)[index * 37 % 200, None]
            yield x, x.square()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
trainer = hl.Trainer(max_duration="3ep", progress=False)
trainer.fit(model, DataLoader(Parabola(), batch_size=16), loss=nn.MSELoss(), optimizer=torch.optim.Adam)
