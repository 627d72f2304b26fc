from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

model = make_model()
learn = Learner(DataLoaders(train_loader, val_loader), model, nn.CrossEntropyLoss())
best = SaveModelCallback()
learn.fit(MAX_EPOCHS, 1e-2, cbs=[EarlyStoppingCallback(patience=3), best])
check_stopped(model, best.best)
