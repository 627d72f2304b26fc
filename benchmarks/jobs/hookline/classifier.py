import torch
from common import check_accuracy, make_model, train_loader, val_loader
from torch import nn

import hookline as hl


def acc(outputs, targets):
    return (outputs.argmax(-1) == targets).float()


model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
callbacks = [hl.Metrics({"acc": acc})]
trainer = hl.Trainer(max_duration="5ep", callbacks=callbacks)
trainer.fit(model, train_loader, val_loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
check_accuracy(model)
