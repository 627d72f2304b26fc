"""AIToolbox: a ``TrainLoop``. Its progress bar cannot be switched off; it writes to a null device."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aitoolbox.torchtrain.callbacks.model_save import ModelCheckpoint
from aitoolbox.torchtrain.callbacks.tensorboard import TensorboardTrainBatchLoss
from aitoolbox.torchtrain.model import TTBasicModel
from aitoolbox.torchtrain.train_loop import TrainLoop
from contenders import Problem
from measure import Batches

from peer_trainers import seconds

LOGS = "`TensorboardTrainBatchLoss`, as it has no CSV logger: the loss and its mean so far"
SAVES = "`ModelCheckpoint`"


class Model(TTBasicModel):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x)


def train(problem: Problem, batches: Batches) -> None:
    _loop(problem, batches).fit(num_epochs=1)


def train_and_log(problem: Problem, batches: Batches) -> None:
    with TemporaryDirectory() as folder:
        callback = TensorboardTrainBatchLoss(log_dir=folder, is_project=False)
        _loop(problem, batches).fit(num_epochs=1, callbacks=[callback])


def evaluate(problem: Problem, batches: Batches) -> None:
    _loop(problem, None, batches).evaluate_loss_on_validation_set()


class Save(ModelCheckpoint):  # type: ignore[misc]
    def __init__(self, folder: Path, times: int) -> None:
        super().__init__("bench", "saves", str(folder), {}, cloud_save_mode=None)
        self._times = times
        self.seconds: list[float] = []

    def on_epoch_end(self) -> None:
        for _ in range(self._times):
            self.seconds.append(seconds(super().on_epoch_end))


def saves(problem: Problem, batches: Batches, folder: Path) -> list[float]:
    save = Save(folder, len(batches))
    _loop(problem, batches).fit(num_epochs=1, callbacks=[save])
    return save.seconds


def _loop(problem: Problem, train_batches: Any, val_batches: Any = None) -> TrainLoop:
    model, optimizer = problem.make()
    return TrainLoop(Model(model), train_batches, val_batches, None, optimizer, problem.loss, end_auto_eval=False)
