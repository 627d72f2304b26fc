import torch
from common import check_resumed, make_model, train_loader, val_loader
from torch import nn

import hookline as hl

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = hl.Trainer(max_duration="5ep", folder="run", resume="auto", callbacks=[hl.Checkpointer("1ep")])
trainer.fit(model, train_loader, val_loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
check_resumed(model)
