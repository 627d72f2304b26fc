"""An event of your own: a task that is made from the default one fires it, and any callback can hear it.

python examples/from-the-seeds/custom_event.py
"""

import torch
from torch import nn

import hookline as hl


class TaskWithCustomEvent(hl.SupervisedTask):
    events = (hl.Event("verify_train_batch", gives=("xb", "yb")),)

    def train_batch(self, run, batch):
        xb, yb = batch
        run.emit("verify_train_batch", xb=xb, yb=yb)
        return super().train_batch(run, batch)


class VerifyBatch(hl.Callback):
    checked = 0

    def on_verify_train_batch(self, run, xb, yb):
        assert xb.shape == (run.config["batch_size"], 1, 28, 28), f"images of shape {tuple(xb.shape)}"
        assert yb.shape == (run.config["batch_size"],), f"labels of shape {tuple(yb.shape)}"
        self.checked += 1


def fit(sizes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    verify = VerifyBatch()
    trainer = hl.Trainer(
        max_duration="1ep", config={"batch_size": 16}, folder=False, callbacks=[verify], progress=False
    )
    data = [(torch.randn(size, 1, 28, 28), torch.randint(10, (size,))) for size in sizes]
    trainer.fit(TaskWithCustomEvent(model, nn.CrossEntropyLoss(), torch.optim.SGD), data)
    print(f"{verify.checked} batches verified")


fit([16, 16, 16])
try:
    fit([16, 16, 5])
except AssertionError as error:
    print("refused:", error)
    print(*error.__notes__)
