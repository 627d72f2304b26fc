import torch
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from torch import nn
from torchtnt.framework import AutoUnit, fit


class Classifier(AutoUnit):
    def compute_loss(self, state, data):
        x, y = data
        outputs = self.module(x)
        return nn.functional.cross_entropy(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.AdamW(module.parameters(), lr=3e-3), None

    def on_eval_start(self, state):
        self.right = self.seen = 0

    def on_eval_step_end(self, state, data, step, loss, outputs):
        self.right += (outputs.argmax(-1) == data[1]).sum().item()
        self.seen += len(data[1])

    def on_eval_end(self, state):
        print("accuracy", self.right / self.seen)


unit = Classifier(module=make_model())
fit(unit, train_loader, val_loader, max_epochs=EPOCHS)
check_accuracy(unit.module)
