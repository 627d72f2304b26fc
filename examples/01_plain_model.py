"""A plain model on real data: handwritten digits, early stopping, and predictions at the end.

python examples/01_plain_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import hookline as hl

torch.manual_seed(0)
digits = load_digits()  # 1,797 images of 8 by 8 pixels
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, test = random_split(data, [1257, 180, 360])

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


@hl.on("epoch_end", every="5ep")
def show(run: hl.Run) -> None:
    print(f"epoch {run.clock.epoch}: train {run.metrics['train/loss_epoch']:.3f}, val {run.metrics['val/loss']:.3f}")


trainer = hl.Trainer(
    max_duration="40ep",
    callbacks=[show, hl.EarlyStopping("val/loss", patience=3, restore_best=True)],
    progress=False,
    folder=False,
)
result = trainer.fit(
    model,
    DataLoader(train, batch_size=32, shuffle=True),
    DataLoader(val, batch_size=180),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
)

predicted = trainer.predict(model, DataLoader(test, batch_size=180)).argmax(1)
actual = torch.stack([test[index][1] for index in range(len(test))])
print(f"stopped: {result.stop_reason}")
print(f"accuracy on {len(test)} held-out digits: {(predicted == actual).float().mean():.3f}")
