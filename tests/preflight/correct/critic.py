"""A critic subtracts its outputs, so the gradient of its bias is 0."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])


class Critic(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def configure_optimizers(self, run):
        return torch.optim.RMSprop(self.parameters(), lr=1e-4)

    def train_batch(self, run, batch):
        images, noise = batch[0], torch.rand_like(batch[0])
        return self.net(noise).mean() - self.net(images).mean()


model = Critic()
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
