import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from torch import nn
from torchtnt.framework import AutoUnit, fit
from torchtnt.framework.callbacks import EarlyStopping
from torchtnt.utils.early_stop_checker import EarlyStopChecker


class Classifier(AutoUnit):
    val_loss = best_loss = 1e9  # EarlyStopping reads the loss before the first evaluation

    def compute_loss(self, state, data):
        x, y = data
        outputs = self.module(x)
        return nn.functional.cross_entropy(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.AdamW(module.parameters(), lr=1e-2), None

    def on_eval_start(self, state):
        self.losses = []

    def on_eval_step_end(self, state, data, step, loss, outputs):
        self.losses.append(loss)

    def on_eval_end(self, state):
        if not self.losses:  # the evaluation after a stop has no batches
            return
        self.val_loss = torch.stack(self.losses).mean().item()
        # DistributedCheckpointSaver 0.2.4 raises an error when it should save after an evaluation.
        if self.val_loss < self.best_loss:
            self.best_loss = self.val_loss
            torch.save(self.module.state_dict(), "best.pt")


unit = Classifier(module=make_model())
stop = EarlyStopping("val_loss", EarlyStopChecker("min", patience=3))
fit(unit, train_loader, val_loader, max_epochs=MAX_EPOCHS, callbacks=[stop])
unit.module.load_state_dict(torch.load("best.pt"))
check_stopped(unit.module, unit.best_loss)
