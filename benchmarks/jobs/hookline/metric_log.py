import torch
from common import check_csv, make_model, train_loader, val_loader
from torch import nn

import hookline as hl


def top2(outputs, targets):
    return (outputs.topk(2).indices == targets[:, None]).any(1).float()


model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
callbacks = [hl.Metrics({"top2": top2}), hl.ProgressBar()]
trainer = hl.Trainer(max_duration="5ep", sinks=[hl.sinks.CSV()], callbacks=callbacks)
result = trainer.fit(model, train_loader, val_loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
check_csv(result.folder / "metrics.csv", "train/loss", "val/top2")
