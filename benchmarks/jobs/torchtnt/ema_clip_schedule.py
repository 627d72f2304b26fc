import torch
from common import EPOCHS, STEPS_PER_EPOCH, check_accuracy, make_model, train_loader, val_loader
from torch import nn
from torchtnt.framework import AutoUnit, fit
from torchtnt.framework.auto_unit import SWAParams


class Classifier(AutoUnit):
    def compute_loss(self, state, data):
        x, y = data
        outputs = self.module(x)
        return nn.functional.cross_entropy(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS_PER_EPOCH)


ema = SWAParams(0, 1, averaging_method="ema", ema_decay=0.98)
unit = Classifier(module=make_model(), clip_grad_norm=1.0, swa_params=ema, step_lr_interval="step")
fit(unit, train_loader, val_loader, max_epochs=EPOCHS)
check_accuracy(unit.swa_model)
