"""A fully tracked experiment: settings, metrics, source, checkpoints, predictions with labels, and a report.

python examples/08_tracked_experiment.py runs/digits
"""

import sys
import tempfile
from pathlib import Path

import torch
import torchmetrics
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary.name)
lr, hidden, dropout, batch_size, seed = 3e-3, 64, 0.2, 32, 0

torch.manual_seed(seed)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, val, test = (torch.utils.data.Subset(data, range(*part)) for part in ((0, 1200), (1200, 1500), (1500, 1797)))
model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))
measures = {
    "accuracy": torchmetrics.Accuracy("multiclass", num_classes=10),
    "confusion": torchmetrics.ConfusionMatrix("multiclass", num_classes=10),  # drawn in the report
}
result = hl.fit(
    model,
    DataLoader(train, batch_size=batch_size, shuffle=True),
    DataLoader(val, batch_size=100),
    DataLoader(test, batch_size=100),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
    max_duration="5ep",
    seed=seed,
    name="digits/baseline",
    folder=folder,
    config={"lr": lr, "hidden": hidden, "dropout": dropout, "batch_size": batch_size},
    callbacks=[
        hl.Metrics(measures, stages=("val", "test")),
        hl.LRMonitor(),
        hl.Checkpointer(every="1ep", monitor="val/accuracy"),
        hl.SaveBest("val/accuracy"),  # the best weights are tested, saved and returned
        hl.SaveAtEnd(predictions="test"),  # model, predictions with labels, metrics, settings, source
    ],
    sinks=[hl.sinks.CSV()],
    progress=False,
)
saved = load_file(folder / "final" / "predictions-test.safetensors")
mistakes = (saved["predictions"].argmax(1) != saved["labels"]).nonzero().flatten().tolist()
print(f"the best checkpoint is {result.best_checkpoint}; test images with a wrong class: {mistakes[:10]} …")
print("files:", *sorted(path.name for path in [*folder.iterdir(), *folder.glob("final/*")] if path.is_file()))
print(f"test/accuracy: {result.metrics['test/accuracy']:.3f}")
