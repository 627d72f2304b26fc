"""The code that the document about callbacks of pytorch-accelerated prints runs there and in Hookline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from hookline.loop import Trainer as HooklineTrainer
from tests.interop.printed import run_printed

pytest.importorskip(
    "pytorch_accelerated.callbacks", reason="pytorch-accelerated is not installed: `make interop` runs these tests"
)

from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.trainer import Trainer

from tests.interop.test_pytorch_accelerated import LOADER, in_hookline, in_pytorch_accelerated, rounded, same

pytestmark = pytest.mark.filterwarnings("ignore")

METRICS = """
    class ClassificationMetricsCallback(TrainerCallback):
    def __init__(self, num_classes):
        self.cm_metrics = ConfusionMatrix(num_classes=num_classes)
        self.accuracy = Accuracy(num_classes=num_classes)

    def _move_to_device(self, trainer):
        self.cm_metrics.to(trainer._eval_dataloader.device)
        self.accuracy.to(trainer._eval_dataloader.device)

    def on_training_run_start(self, trainer, **kwargs):
        self._move_to_device(trainer)

    def on_evaluation_run_start(self, trainer, **kwargs):
        self._move_to_device(trainer)

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        preds = batch_output["model_outputs"].argmax(dim=-1)
        self.cm_metrics.update(preds, batch[1])
        self.accuracy.update(preds, batch[1])

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer.run_history.update_metric(
            "confusion_matrix", self.cm_metrics.compute().cpu()
        )
        trainer.run_history.update_metric("accuracy", self.accuracy.compute().item())

        self.cm_metrics.reset()
        self.accuracy.reset()
"""

INDENTED = {
    "    class ClassificationMetricsCallback(TrainerCallback):": "class ClassificationMetricsCallback(TrainerCallback):"
}
"""The document indents the methods as far as the class."""

EVENT = """
    class VerifyBatchCallback(TrainerCallback):
        def verify_train_batch(self, trainer, xb, yb):
            assert xb.shape[0] == trainer.run_config["train_per_device_batch_size"]
            assert xb.shape[1] == 1
            assert xb.shape[2] == 28
            assert xb.shape[3] == 28
            assert yb.shape[0] == trainer.run_config["train_per_device_batch_size"]


    class TrainerWithCustomCallbackEvent(Trainer):
        def calculate_train_batch_loss(self, batch) -> dict:
            xb, yb = batch
            self.callback_handler.call_event(
                "verify_train_batch", trainer=self, xb=xb, yb=yb
            )
            return super().calculate_train_batch_loss(batch)
"""

ATTRIBUTE = {'run_config["train_per_device_batch_size"]': "run_config.train_per_device_batch_size"}
"""The ``run_config`` of pytorch-accelerated has no items, so that the printed line is an error there."""


def metrics_callback() -> Any:
    names = {
        "TrainerCallback": TrainerCallback,
        "ConfusionMatrix": MulticlassConfusionMatrix,
        "Accuracy": MulticlassAccuracy,
    }
    return run_printed(METRICS, names, INDENTED)["ClassificationMetricsCallback"](num_classes=2)


def test_the_printed_metrics_are_the_same() -> None:
    trainer = in_pytorch_accelerated([metrics_callback()])
    model, result = in_hookline([metrics_callback()])
    there = trainer.run_history
    assert result.history["val/accuracy"] == pytest.approx(there.get_metric_values("accuracy"))
    matrices = rounded([matrix.tolist() for matrix in there.get_metric_values("confusion_matrix")])
    assert rounded(list(result.history["val/confusion_matrix"])) == matrices
    assert sum(map(sum, matrices[0])) == 16
    assert same(model, trainer.model)


def images(size: int = 28) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(32, 1, size, size, generator=generator), torch.arange(32) % 2)


def classifier(size: int = 28) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(size * size, 2))


def in_its_trainer(names: dict[str, Any], size: int = 28) -> nn.Module:
    model = classifier(size)
    trainer = names["TrainerWithCustomCallbackEvent"](
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), [names["VerifyBatchCallback"]]
    )
    trainer.train(images(size), 2, per_device_batch_size=8, train_dataloader_kwargs=LOADER)
    return model


def here(names: dict[str, Any], size: int = 28) -> nn.Module:
    """Train in Hookline with the printed callback, and another one that sends the event."""

    class Send(TrainerCallback):  # type: ignore[misc]
        def on_train_step_end(self, trainer: Any, batch: Any, **given: Any) -> None:
            xb, yb = batch
            trainer.callback_handler.call_event("verify_train_batch", trainer=trainer, xb=xb, yb=yb)

    model = classifier(size)
    loader = torch.utils.data.DataLoader(images(size), batch_size=8)
    callbacks = [names["VerifyBatchCallback"], Send]
    trainer = HooklineTrainer(max_duration="2ep", callbacks=callbacks, folder=False, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    return model


def test_the_printed_event_verifies_batches() -> None:
    given = {"Trainer": Trainer, "TrainerCallback": TrainerCallback}
    as_printed, changed = run_printed(EVENT, given), run_printed(EVENT, given, ATTRIBUTE)
    with pytest.raises(TypeError, match="not subscriptable"):
        in_its_trainer(as_printed)
    assert same(here(as_printed), in_its_trainer(changed))
    for train, names in ((here, as_printed), (in_its_trainer, changed)):
        with pytest.raises(AssertionError):
            train(names, size=8)
