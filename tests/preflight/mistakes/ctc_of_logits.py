"""CTCLoss gets logits.

Found as: error loss-input
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


class Reader(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 11)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        rows, labels = batch
        lengths = torch.full((len(rows),), 8)
        return nn.functional.ctc_loss(
            self.net(rows).transpose(0, 1), labels[:, None] + 1, lengths, torch.ones_like(lengths)
        )


model = Reader()
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
