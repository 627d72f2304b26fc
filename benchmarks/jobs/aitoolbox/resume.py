from pathlib import Path

import torch
from aitoolbox.torchtrain.callbacks.model_load import ModelLoadContinueTraining
from aitoolbox.torchtrain.callbacks.model_save import ModelCheckpoint
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from torch import nn


class Model(TTBasicModel):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x):
        return self.net(x)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loop = TrainLoop(model, train_loader, val_loader, None, optimizer, nn.CrossEntropyLoss())
names = {"project_name": "job", "experiment_name": "run", "local_model_result_folder_path": "."}
no_cloud = {"cloud_save_mode": "local", "bucket_name": "", "cloud_dir_prefix": ""}
callbacks = [ModelCheckpoint(hyperparams={}, **names, **no_cloud)]
if saved := sorted(Path("job").glob("run_*/checkpoint_model/*.pth")):
    stamp, epoch = saved[-1].parts[1].removeprefix("run_"), int(saved[-1].stem.rpartition("E")[2])
    callbacks.append(ModelLoadContinueTraining(stamp, epoch_num=epoch, **names, **no_cloud))
loop.fit(EPOCHS, callbacks=callbacks)
check_resumed(model.net)
