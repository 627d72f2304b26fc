"""A language model whose output layer is its embedding."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
text = torch.randint(0, 40, (400, 17))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(64, 32), nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 64, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0]).transpose(1, 2)


hl.fit(
    LanguageModel(),
    DataLoader(TensorDataset(text[:320, :-1], text[:320, 1:]), batch_size=32, shuffle=True),
    DataLoader(TensorDataset(text[320:, :-1], text[320:, 1:]), batch_size=80),
    loss=nn.CrossEntropyLoss(),
    optimizer=torch.optim.AdamW,
    max_duration="2ep",
    progress=False,
)
