import torch
from common import check_stopped, make_model, train_loader, val_loader
from torch import nn

import hookline as hl

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
callbacks = [hl.EarlyStopping("val/loss", patience=3, restore_best=True)]
trainer = hl.Trainer(max_duration="100ep", callbacks=callbacks)
result = trainer.fit(model, train_loader, val_loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
check_stopped(model, min(result.history["val/loss"]))
