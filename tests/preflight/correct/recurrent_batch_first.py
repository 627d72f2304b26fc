"""An LSTM over the rows of images, in both layouts."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(8, 16, batch_first=True)
        self.second = nn.GRU(16, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.last = nn.Linear(32, 10)

    def forward(self, rows):
        rows = self.second(self.first(rows)[0].transpose(0, 1))[0]
        return self.last(self.encoder(rows.transpose(0, 1)).mean(1))


model = Reader()
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
