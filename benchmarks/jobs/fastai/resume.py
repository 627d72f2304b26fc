from pathlib import Path

from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from fastai.callback.tracker import SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

model = make_model()
learn = Learner(DataLoaders(train_loader, val_loader), model, nn.CrossEntropyLoss())
epochs = sorted(int(path.stem.partition("_")[2]) for path in Path("models").glob("run_*.pth"))
if epochs:
    learn.create_opt()
    learn.load(f"run_{epochs[-1]}", weights_only=False)
learn.fit(
    EPOCHS,
    3e-3,
    cbs=SaveModelCallback(fname="run", every_epoch=True, with_opt=True),
    start_epoch=epochs[-1] + 1 if epochs else 0,
)
check_resumed(model)
