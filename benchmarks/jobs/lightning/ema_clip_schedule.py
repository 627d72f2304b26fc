import lightning as L
import torch
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from lightning.pytorch.callbacks import EMAWeightAveraging
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
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


classifier = Classifier()
trainer = L.Trainer(max_epochs=EPOCHS, gradient_clip_val=1.0, callbacks=[EMAWeightAveraging(decay=0.98)])
trainer.fit(classifier, train_loader, val_loader)
check_accuracy(classifier.model)
