from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from torch import nn

model = make_model()
learn = Learner(DataLoaders(train_loader, val_loader), model, nn.CrossEntropyLoss(), metrics=accuracy)
learn.fit(EPOCHS, 3e-3)
check_accuracy(model)
