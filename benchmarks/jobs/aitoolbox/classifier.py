import torch
from aitoolbox.experiment.result_package.abstract_result_packages import AbstractResultPackage
from aitoolbox.torchtrain.callbacks.performance_eval import ModelPerformanceEvaluation, ModelPerformancePrintReport
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.train_loop import TrainLoop
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from torch import nn


class Model(TTBasicModel):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x):
        return self.net(x)


class Accuracy(AbstractResultPackage):
    def prepare_results_dict(self):
        return {"acc": (self.y_predicted.argmax(-1) == self.y_true).mean()}


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loop = TrainLoop(model, train_loader, val_loader, None, optimizer, nn.CrossEntropyLoss())
evaluation = ModelPerformanceEvaluation(Accuracy(), {})
loop.fit(EPOCHS, callbacks=[evaluation, ModelPerformancePrintReport(["val_acc"])])
check_accuracy(model.net)
