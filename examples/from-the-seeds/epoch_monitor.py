"""One monitor in four forms: a class with a hook, a class that hears every event, and functions.

python examples/from-the-seeds/epoch_monitor.py
"""

import torch
from torch import nn

import hookline as hl


class EpochMonitor(hl.Callback):
    def on_train_epoch_start(self, run):
        print(f"Epoch: {run.clock.epoch}")


class EveryEventMonitor(hl.Callback):
    """`on_event` hears everything, and does not switch the named hooks off."""

    def on_event(self, event, run):
        if event == "train_epoch_start":
            print(f"Epoch: {run.clock.epoch} (by on_event)")

    def on_train_end(self, run):
        print(f"The end, after {run.clock.epoch} epochs (by on_train_end)")


lambda_monitor = hl.LambdaCallback(on_train_epoch_start=lambda run: print(f"Epoch: {run.clock.epoch} (by a lambda)"))


@hl.on("train_epoch_start", every="2ep")
def function_monitor(run):
    print(f"Epoch: {run.clock.epoch} (by a function, every second epoch)")


hl.fit(
    nn.Linear(8, 2),
    [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(5)],
    loss=nn.CrossEntropyLoss(),
    optimizer=torch.optim.SGD,
    max_duration="3ep",
    folder=False,
    callbacks=[EpochMonitor(), EveryEventMonitor(), lambda_monitor, function_monitor],
    progress=False,
)
