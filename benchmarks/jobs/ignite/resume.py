from pathlib import Path

import torch
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Loss
from torch import nn

model, loss = make_model(), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = create_supervised_trainer(model, optimizer, loss)
evaluator = create_supervised_evaluator(model, {"loss": Loss(loss)})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(val_loader))
state = {"trainer": trainer, "model": model, "optimizer": optimizer}
saver = DiskSaver("run", require_empty=False)
trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(state, saver, filename_pattern="last.pt"))
if Path("run/last.pt").exists():
    Checkpoint.load_objects(state, torch.load("run/last.pt"))
trainer.run(train_loader, max_epochs=EPOCHS)
check_resumed(model)
