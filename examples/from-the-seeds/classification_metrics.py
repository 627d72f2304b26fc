"""Metrics of torchmetrics in a callback, written to the history (hl.Metrics does it in one line).

python examples/from-the-seeds/classification_metrics.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

import hookline as hl


class ClassificationMetrics(hl.Callback):
    """What it holds is moved to the model's device, and saved in checkpoints: there is nothing to write for that."""

    writes = ("val/accuracy", "val/confusion_matrix")

    def __init__(self, num_classes):
        self.confusion = MulticlassConfusionMatrix(num_classes)
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")

    def on_eval_batch_end(self, run):
        predictions = run.outputs.argmax(dim=-1)
        self.confusion.update(predictions, run.batch[1])
        self.accuracy.update(predictions, run.batch[1])

    def on_eval_end(self, run):
        run.log({"accuracy": self.accuracy.compute(), "confusion_matrix": self.confusion.compute()})
        self.confusion.reset()
        self.accuracy.reset()


torch.manual_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
result = hl.fit(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=32, shuffle=True),
    DataLoader(TensorDataset(images[1437:], labels[1437:]), batch_size=90),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    max_duration="5ep",
    seed=0,
    folder=False,
    # The stopper reads what the callback writes, so it runs after it, wherever it is in the list.
    callbacks=[hl.EarlyStopping("val/accuracy"), ClassificationMetrics(10)],
    progress=False,
)
matrix = torch.tensor(result.history["val/confusion_matrix"][-1])
print("accuracy by epoch:", [round(value, 3) for value in result.history["val/accuracy"]])
print(f"confusion matrix: {int(matrix.trace())} of {int(matrix.sum())} right, row of the eights {matrix[8].tolist()}")
