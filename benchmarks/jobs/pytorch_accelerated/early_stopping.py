import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_set, val_set
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import EarlyStoppingCallback, SaveBestModelCallback
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS
from torch import nn

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
best = SaveBestModelCallback()
stop = EarlyStoppingCallback(early_stopping_patience=3)
trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(*DEFAULT_CALLBACKS, best, stop))
trainer.train(
    train_set, MAX_EPOCHS, val_set, per_device_batch_size=32, eval_dataloader_kwargs={"batch_size": len(val_set)}
)
check_stopped(model, best.best_metric)
