"""Each worker has a copy of one generator, so that they draw the same numbers.

Found as: warning data-random
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))


class Noisy(torch.utils.data.Dataset):
    def __init__(self, data):
        import numpy

        self.data, self.rng = data, numpy.random.default_rng()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image, label = self.data[index]
        return image + float(self.rng.normal(0, 0.01)), label


train, val, _ = random_split(data, [1024, 256, 517])
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
trainer = hl.Trainer(max_duration="2ep", progress=False, seed=0)
trainer.fit(
    model,
    DataLoader(Noisy(train), batch_size=32, shuffle=True, num_workers=2),
    DataLoader(val, batch_size=64),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
