"""The task logs train/accuracy, and the callback monitors train/acc.

Found as: warning monitor
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl


class Classifier(hl.Task):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(64, 10)

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        images, labels = batch
        outputs = self.head(self.body(images))
        run.log({"train/accuracy": (outputs.argmax(1) == labels).float().mean()})
        return F.cross_entropy(outputs, labels)

    def eval_batch(self, run, batch):
        images, labels = batch
        return F.cross_entropy(self.head(self.body(images)), labels)


torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])
trainer = hl.Trainer(max_duration="2ep", callbacks=[hl.EarlyStopping("train/acc", mode="max")], progress=False, seed=0)
trainer.fit(Classifier(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=64))
