"""A language model predicts the token that it reads.

Found as: warning loss-target
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
tokens = torch.tensor(digits.data).long()
data = TensorDataset(tokens, tokens)
train, val, _ = random_split(data, [1024, 256, 517])


class Copier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.last = nn.Linear(32, 17)

    def forward(self, tokens):
        return self.last(self.rnn(self.embed(tokens))[0]).transpose(1, 2)


model = Copier()
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
