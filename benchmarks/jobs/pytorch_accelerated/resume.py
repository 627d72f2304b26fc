from pathlib import Path

import torch
from common import EPOCHS, check_resumed, make_model, train_set, val_set
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import SaveTrainingStateCallback
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS
from torch import nn

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
save = SaveTrainingStateCallback("run", save_every_n_epochs=1)
last = max(Path("run").glob("*"), key=lambda folder: folder.stat().st_mtime, default=None)
trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(*DEFAULT_CALLBACKS, save))
trainer.train(train_set, EPOCHS, val_set, per_device_batch_size=32, resume_from=last and str(last))
check_resumed(model)
