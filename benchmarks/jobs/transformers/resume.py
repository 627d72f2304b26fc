import os

import torch
from common import EPOCHS, check_resumed, make_model, train_set, val_set
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


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


model = Classifier()
arguments = TrainingArguments(
    "run",
    num_train_epochs=EPOCHS,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=len(val_set),
    eval_strategy="epoch",
    save_strategy="epoch",
)
trainer = Trainer(model, arguments, collate, train_set, val_set)
trainer.train(resume_from_checkpoint=get_last_checkpoint("run") if os.path.isdir("run") else None)
check_resumed(model.net)
