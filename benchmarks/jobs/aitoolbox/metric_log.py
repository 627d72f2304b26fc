from pathlib import Path

import torch
from aitoolbox.experiment.result_package.abstract_result_packages import AbstractResultPackage
from aitoolbox.torchtrain.callbacks.performance_eval import ModelPerformanceEvaluation, ModelTrainHistoryFileWriter
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import EPOCHS, check_csv, make_model, train_loader, val_loader
from torch import nn


class Model(TTBasicModel):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x):
        return self.net(x)


class Top2(AbstractResultPackage):
    def prepare_results_dict(self):
        best = self.y_predicted.argsort(-1)[:, -2:]
        return {"top2": (best == self.y_true[:, None]).any(1).mean()}


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loop = TrainLoop(model, train_loader, val_loader, None, optimizer, nn.CrossEntropyLoss())
names = {"project_name": "job", "experiment_name": "run", "local_model_result_folder_path": "."}
no_cloud = {"cloud_save_mode": "local", "bucket_name": "", "cloud_dir_prefix": ""}
log = ModelTrainHistoryFileWriter(file_format="csv", **names, **no_cloud)
loop.fit(EPOCHS, callbacks=[ModelPerformanceEvaluation(Top2(), {}), log])
check_csv(next(Path("job").rglob("*.csv")), "loss", "val_top2")
