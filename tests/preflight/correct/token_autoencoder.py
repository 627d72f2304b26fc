"""The targets of an autoencoder are the tokens that it reads."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
tokens = torch.randint(0, 17, (320, 6))


class Autoencoder(hl.Task):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(17, 16), nn.GRU(16, 8, batch_first=True)
        self.last = nn.Linear(8, 6 * 17)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        tokens = batch[0]
        hidden = self.rnn(self.embed(tokens))[1][0]
        return F.cross_entropy(self.last(hidden).view(len(tokens), 17, 6), tokens)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(Autoencoder(), DataLoader(TensorDataset(tokens), batch_size=32, shuffle=True))
