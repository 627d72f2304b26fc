import lightning as L
import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
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
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


classifier, best = Classifier(), ModelCheckpoint(monitor="val_loss")
trainer = L.Trainer(max_epochs=MAX_EPOCHS, callbacks=[EarlyStopping("val_loss", patience=3), best])
trainer.fit(classifier, train_loader, val_loader)
classifier = Classifier.load_from_checkpoint(best.best_model_path)
check_stopped(classifier.model, best.best_model_score.item())
