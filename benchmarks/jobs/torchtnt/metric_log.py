import torch
from common import EPOCHS, check_csv, make_model, train_loader, val_loader
from torch import nn
from torchtnt.framework import AutoUnit, fit
from torchtnt.framework.callbacks import TQDMProgressBar
from torchtnt.utils.loggers import CSVLogger


def top2(outputs, targets):
    return (outputs.topk(2).indices == targets[:, None]).any(1).float()


class Classifier(AutoUnit):
    def compute_loss(self, state, data):
        x, y = data
        outputs = self.module(x)
        return nn.functional.cross_entropy(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.AdamW(module.parameters(), lr=3e-3), None

    def on_train_step_end(self, state, data, step, results):
        self.loss = results.loss

    def on_eval_start(self, state):
        self.values = []

    def on_eval_step_end(self, state, data, step, loss, outputs):
        self.values.append(top2(outputs, data[1]))

    def on_eval_end(self, state):
        epoch = self.train_progress.num_epochs_completed
        logger.log_dict({"loss": self.loss, "top2": torch.cat(self.values).mean()}, epoch)


logger = CSVLogger("metrics.csv")
fit(Classifier(module=make_model()), train_loader, val_loader, max_epochs=EPOCHS, callbacks=[TQDMProgressBar()])
logger.close()
check_csv("metrics.csv", "loss", "top2")
