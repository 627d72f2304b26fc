import lightning as L
import torch
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from torch import nn
from torchmetrics.functional import accuracy


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        outputs = self.model(x)
        self.log("val_loss", nn.functional.cross_entropy(outputs, y))
        self.log("val_acc", accuracy(outputs, y, "multiclass", num_classes=10))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


classifier = Classifier()
L.Trainer(max_epochs=EPOCHS).fit(classifier, train_loader, val_loader)
check_accuracy(classifier.model)
