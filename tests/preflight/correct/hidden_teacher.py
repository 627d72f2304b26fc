"""A frozen teacher in a list is not a part of the model."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, _ = random_split(data, [1024, 256, 517])


class Student(hl.Task):
    def __init__(self, teacher):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.teacher = [teacher]

    def configure_optimizers(self, run):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_batch(self, run, batch):
        with torch.no_grad():
            wanted = self.teacher[0](batch[0]).softmax(1)
        outputs = self.net(batch[0])
        soft = nn.functional.kl_div(outputs.log_softmax(1), wanted, reduction="batchmean")
        return nn.functional.cross_entropy(outputs, batch[1]) + soft


model = Student(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
