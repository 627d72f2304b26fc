"""A report of the training, with predictions at the end of each epoch and on the test set at the end.

python examples/from-the-seeds/training_report.py
"""

import torch
from torch import nn

import hookline as hl


class TrainingReport(hl.Callback):
    def on_train_start(self, run):
        print(f"Starting the training! Experiment {run.project}/{run.name} started at: {run.started:%Y-%m-%d %H:%M}")

    def on_train_epoch_start(self, run):
        print(f"Starting new epoch num {run.clock.epoch}")

    def on_epoch_end(self, run):
        predictions = run.predict("val")  # at once, and nothing else in the run changes
        print(f"Model predictions on validation: {predictions.argmax(1).tolist()}")

    def on_train_end(self, run):
        print(f"End of training! Stopped at epoch {run.clock.epoch}")
        print(f"Model predictions on test: {run.predict('test').argmax(1).tolist()}")


def batches(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(6, 4, generator=generator) for _ in range(count)]
    return [(x, x[:, :3].argmax(dim=1)) for x in inputs]  # which of the first three numbers is the largest?


torch.manual_seed(0)
trainer = hl.Trainer(
    name="seeds/report",
    max_duration="10ep",
    seed=0,
    folder=False,
    callbacks=[
        TrainingReport(),
        hl.EarlyStopping("val/loss", patience=3, stopping_threshold=0.3),
        hl.StopOnNaN(),
        hl.StopOnConstantPredictions(value=0),
    ],
    progress=False,
)
result = trainer.fit(
    nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
    batches(40, seed=1),
    batches(3, seed=2),
    batches(2, seed=3),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
)
print(f"{result.stop_reason}; loss on the test set {result.metrics['test/loss']:.3f}")
