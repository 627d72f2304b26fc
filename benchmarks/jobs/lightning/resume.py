import lightning as L
import torch
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


classifier = Classifier()
trainer = L.Trainer(max_epochs=EPOCHS, callbacks=[ModelCheckpoint("run", save_last=True)])
trainer.fit(classifier, train_loader, val_loader, ckpt_path="last")
check_resumed(classifier.model)
