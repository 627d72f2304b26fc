"""The loss begins with a weight of 0."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)


class Warm(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        x = batch[0]
        return min(1.0, run.clock.step / 100) * F.mse_loss(self.net(x).squeeze(1), x[:, 0])


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(Warm(), DataLoader(TensorDataset(x), batch_size=32, shuffle=True))
