import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_set, val_set
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments


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
    num_train_epochs=MAX_EPOCHS,
    learning_rate=1e-2,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=len(val_set),
    eval_strategy="epoch",
    save_strategy="best",
    metric_for_best_model="loss",
    load_best_model_at_end=True,
)
trainer = Trainer(model, arguments, collate, train_set, val_set, callbacks=[EarlyStoppingCallback(3)])
trainer.train()
check_stopped(model.net, trainer.state.best_metric)
