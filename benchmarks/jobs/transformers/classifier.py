import torch
from common import EPOCHS, check_accuracy, make_model, train_set, val_set
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


def accuracy(prediction):
    return {"acc": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


model = Classifier()
arguments = TrainingArguments(
    "run",
    num_train_epochs=EPOCHS,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=len(val_set),
    eval_strategy="epoch",
)
trainer = Trainer(model, arguments, collate, train_set, val_set, compute_metrics=accuracy)
trainer.train()
check_accuracy(model.net)
