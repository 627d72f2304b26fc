from functools import partial

import torch
from common import EPOCHS, check_accuracy, make_model, train_set, val_set
from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from pytorch_accelerated.callbacks import ModelEmaCallback
from pytorch_accelerated.schedulers import CosineLrScheduler
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS
from torch import nn

model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = partial(
    CosineLrScheduler,
    total_num_epochs=TrainerPlaceholderValues.NUM_EPOCHS,
    num_update_steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
)
trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=(*DEFAULT_CALLBACKS, ModelEmaCallback(0.5)))
trainer.train(
    train_set, EPOCHS, val_set, per_device_batch_size=32, gradient_clip_value=1.0, create_scheduler_fn=schedule
)
trainer.load_checkpoint("ema_model.pt", load_optimizer=False)
check_accuracy(model)
