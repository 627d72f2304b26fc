"""The loss is a new tensor, through which no gradient flows.

Found as: error gradients
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


class Classifier(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        return torch.tensor(loss.item(), requires_grad=True)

    def eval_batch(self, run, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


model = Classifier()
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=64))
