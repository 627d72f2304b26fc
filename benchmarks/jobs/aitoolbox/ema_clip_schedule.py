import torch
from aitoolbox.torchtrain.callbacks.abstract import AbstractCallback
from aitoolbox.torchtrain.callbacks.gradient import GradNormClip
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.schedulers.warmup import CosineWithWarmupScheduler
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import EPOCHS, STEPS_PER_EPOCH, check_accuracy, make_model, train_loader, val_loader
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Model(TTBasicModel):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x):
        return self.net(x)


class EMA(AbstractCallback):
    def __init__(self):
        super().__init__("moving average of the weights")

    def on_train_begin(self):
        self.average = AveragedModel(self.train_loop_obj.model, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def on_after_optimizer_step(self):
        self.average.update_parameters(self.train_loop_obj.model)

    def on_train_end(self):
        self.train_loop_obj.model.load_state_dict(self.average.module.state_dict())


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loop = TrainLoop(model, train_loader, val_loader, None, optimizer, nn.CrossEntropyLoss())
schedule = CosineWithWarmupScheduler(num_warmup_steps=0, num_training_steps=EPOCHS * STEPS_PER_EPOCH)
loop.fit(EPOCHS, callbacks=[EMA(), GradNormClip(1.0), schedule])
check_accuracy(model.net)
