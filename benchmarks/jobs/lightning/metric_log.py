import lightning as L
import torch
from common import EPOCHS, check_csv, make_model, train_loader, val_loader
from lightning.pytorch.loggers import CSVLogger
from torch import nn


def top2(outputs, targets):
    return (outputs.topk(2).indices == targets[:, None]).any(1).float()


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_top2", top2(self.model(x), y).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


logger = CSVLogger(".")
L.Trainer(max_epochs=EPOCHS, logger=logger, log_every_n_steps=10).fit(Classifier(), train_loader, val_loader)
check_csv(f"{logger.log_dir}/metrics.csv", "loss", "val_top2")
