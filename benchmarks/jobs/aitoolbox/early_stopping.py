import torch
from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback
from aitoolbox.torchtrain.callbacks.basic import EarlyStopping
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from torch import nn


class Model(TTBasicModel):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x):
        return self.net(x)


class SaveBest(AbstractCallback):
    def __init__(self):
        super().__init__("save the best weights")
        self.best = float("inf")

    def on_epoch_end(self):
        loss = float(self.train_loop_obj.train_history["val_loss"][-1])
        if loss < self.best:
            self.best = loss
            torch.save(self.train_loop_obj.model.state_dict(), "best.pt")

    def on_train_end(self):
        self.train_loop_obj.model.load_state_dict(torch.load("best.pt"))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loop = TrainLoop(model, train_loader, val_loader, None, optimizer, nn.CrossEntropyLoss())
best = SaveBest()
loop.fit(MAX_EPOCHS, callbacks=[EarlyStopping("val_loss", patience=3), best])
check_stopped(model.net, best.best)
