import csv

import torch
from common import EPOCHS, check_csv, make_model, train_loader, val_loader
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from torchmetrics import MeanMetric


class Top2(MeanMetric):
    def update(self, outputs, targets):
        super().update((outputs.topk(2).indices == targets[:, None]).any(1).float())


class Log(Callback):
    def __init__(self, file):
        self.rows = csv.writer(file)
        self.rows.writerow(["epoch", "loss", "top2"])

    def eval_end(self, state, logger):
        self.rows.writerow(
            [state.timestamp.epoch.value, state.loss.item(), state.eval_metrics["eval"]["Top2"].compute().item()]
        )


model = ComposerClassifier(make_model(), num_classes=10, val_metrics=Top2())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
with open("metrics.csv", "w", newline="") as file:
    log = Log(file)
    trainer = Trainer(
        model=model,
        train_dataloader=train_loader,
        eval_dataloader=val_loader,
        optimizers=optimizer,
        max_duration=f"{EPOCHS}ep",
        callbacks=[log],
    )
    trainer.fit()
check_csv("metrics.csv", "loss", "top2")
