"""A token of a late sentence is not in the vocabulary.

Found as: warning index
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

PAD, WORDS, TAGS = 0, 50, 5
torch.manual_seed(0)


def sentence():
    words = torch.randint(1, WORDS, (int(torch.randint(3, 12, ())),))
    return words, words % TAGS


def fixed(number):
    words = torch.randint(1, WORDS, (number, 8))
    return words, words % TAGS


def collate(batch):
    words, tags = zip(*batch, strict=True)
    return pad_sequence(words, batch_first=True, padding_value=PAD), pad_sequence(
        tags, batch_first=True, padding_value=-100
    )


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16, padding_idx=PAD)
        self.rnn = nn.GRU(16, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, TAGS)

    def forward(self, words):
        return self.out(self.rnn(self.embed(words))[0]).transpose(1, 2)


train, val = TensorDataset(*fixed(320)), TensorDataset(*fixed(64))
train.tensors[0][-1, -1] = WORDS
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    Tagger(),
    DataLoader(train, batch_size=32),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
)
