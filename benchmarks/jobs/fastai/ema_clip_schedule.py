from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from fastai.callback.core import Callback
from fastai.callback.schedule import ParamScheduler, SchedCos
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class EMA(Callback):
    def before_fit(self):
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def after_step(self):
        self.average.update_parameters(self.model)

    def after_fit(self):
        self.model.load_state_dict(self.average.module.state_dict())


model = make_model()
learn = Learner(DataLoaders(train_loader, val_loader), model, nn.CrossEntropyLoss())
schedule = ParamScheduler({"lr": SchedCos(3e-3, 0.0)})
learn.fit(EPOCHS, cbs=[EMA(), GradientClip(1.0), schedule])
check_accuracy(model)
