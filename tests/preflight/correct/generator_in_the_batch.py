"""A batch holds a generator, which cannot be copied."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import default_collate

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)


def collate(samples):
    x, y = default_collate(samples)
    return {"x": x, "y": y, "ids": (number for number in range(len(x)))}


class Classifier(hl.Task):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 5)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        return F.cross_entropy(self.net(batch["x"]), batch["y"])


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=collate))
