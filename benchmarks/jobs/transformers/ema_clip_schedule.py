import torch
from common import EPOCHS, check_accuracy, make_model, train_set, val_set
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import Trainer, TrainerCallback, TrainingArguments


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


class EMA(TrainerCallback):
    def on_train_begin(self, args, state, control, model, **kwargs):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def on_step_end(self, args, state, control, model, **kwargs):
        self.average.update_parameters(model)

    def on_train_end(self, args, state, control, model, **kwargs):
        model.load_state_dict(self.average.module.state_dict())


model = Classifier()
arguments = TrainingArguments(
    "run",
    num_train_epochs=EPOCHS,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=len(val_set),
    eval_strategy="epoch",
    lr_scheduler_type="cosine",
    max_grad_norm=1.0,
)
trainer = Trainer(model, arguments, collate, train_set, val_set, callbacks=[EMA()])
trainer.train()
trainer.evaluate()
check_accuracy(model.net)
