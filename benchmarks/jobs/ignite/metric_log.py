import csv

import torch
from common import EPOCHS, check_csv, make_model, train_loader, val_loader
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ProgressBar
from ignite.metrics import Average, RunningAverage
from torch import nn


def top2(outputs):
    predicted, targets = outputs
    return (predicted.topk(2).indices == targets[:, None]).any(1).float()


model = make_model()
trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3), nn.CrossEntropyLoss())
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
ProgressBar().attach(trainer, ["loss"])
evaluator = create_supervised_evaluator(model, {"top2": Average(top2)})

with open("metrics.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["epoch", "loss", "top2"])

    @trainer.on(Events.EPOCH_COMPLETED)
    def log():
        evaluator.run(val_loader)
        rows.writerow([trainer.state.epoch, trainer.state.metrics["loss"], evaluator.state.metrics["top2"]])

    trainer.run(train_loader, max_epochs=EPOCHS)
check_csv("metrics.csv", "loss", "top2")
