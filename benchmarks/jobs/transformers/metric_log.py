import csv

import torch
from common import EPOCHS, check_csv, make_model, train_set, val_set
from torch import nn
from transformers import Trainer, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(samples):
    x, labels = zip(*samples, strict=True)
    return {"x": torch.stack(x), "labels": torch.stack(labels)}


def top2(prediction):
    best = prediction.predictions.argsort(-1)[:, -2:]
    return {"top2": (best == prediction.label_ids[:, None]).any(1).mean()}


model = Classifier()
arguments = TrainingArguments(
    "run",
    num_train_epochs=EPOCHS,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=len(val_set),
    eval_strategy="epoch",
    logging_steps=10,
)
trainer = Trainer(model, arguments, collate, train_set, val_set, compute_metrics=top2)
trainer.train()
with open("metrics.csv", "w", newline="") as file:
    rows = csv.DictWriter(file, ["step", "loss", "eval_top2"], extrasaction="ignore")
    rows.writeheader()
    rows.writerows(trainer.state.log_history)
check_csv("metrics.csv", "loss", "eval_top2")
