import torch
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from torch import nn
from torchtnt.framework import AutoUnit, fit
from torchtnt.framework.callbacks import DistributedCheckpointSaver


class Classifier(AutoUnit):
    def compute_loss(self, state, data):
        x, y = data
        outputs = self.module(x)
        return nn.functional.cross_entropy(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.AdamW(module.parameters(), lr=3e-3), None


unit = Classifier(module=make_model())
DistributedCheckpointSaver.restore_from_latest("run", unit)
saver = DistributedCheckpointSaver("run", save_every_n_epochs=1)
fit(unit, train_loader, val_loader, max_epochs=EPOCHS, callbacks=[saver])
check_resumed(unit.module)
