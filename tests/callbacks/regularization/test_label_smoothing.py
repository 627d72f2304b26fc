"""Labels are smoothed in training as torch smooths them, and in nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import Checkpointer, LabelSmoothing
from hookline.errors import ArgumentError, SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, same_tensors, sgd


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_bitwise_that_of_a_smoothed_loss(accumulate: int) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5])
    train = [(x, torch.where(torch.arange(8) == 3, -100, y)) for x, y in tiny_data()]
    expected = fit(train=train, loss=nn.CrossEntropyLoss(weight, label_smoothing=0.2), accumulate=accumulate)
    result = fit(LabelSmoothing(0.2), train=train, loss=nn.CrossEntropyLoss(weight), accumulate=accumulate)
    plain = fit(train=train, loss=nn.CrossEntropyLoss(weight), accumulate=accumulate)
    assert same_tensors(result.model.state_dict(), expected.model.state_dict())
    assert not same_tensors(result.model.state_dict(), plain.model.state_dict())
    assert result.history["train/loss_epoch"] == expected.history["train/loss_epoch"]


def test_evaluations_do_not_smooth_also_inside_training() -> None:
    val, loss = tiny_data(2, seed=1), nn.CrossEntropyLoss()
    result = fit(LabelSmoothing(0.3), val=val, loss=loss, eval_every="2st")
    assert result.metrics["val/loss"] == pytest.approx(
        torch.stack([loss(result.model(x), y) for x, y in val]).mean().item(), rel=1e-5
    )
    assert loss.label_smoothing == 0


def test_the_loss_of_a_task_is_smoothed() -> None:
    class Own(hl.Task[object]):
        def __init__(self, smoothing: float = 0.0) -> None:
            super().__init__()
            self.net = TinyModel()
            self.criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)

        def configure_optimizers(self, run: hl.Run) -> object:
            return sgd(self.parameters())

        def train_batch(self, run: hl.Run, batch: object) -> object:
            x, y = batch  # type: ignore[misc]
            return self.criterion(self.net(x), y)

    result, expected = fit(LabelSmoothing(0.2), model=Own()), fit(model=Own(0.2))
    assert same_tensors(result.model.state_dict(), expected.model.state_dict())


def test_a_run_that_crashed_resumes_bitwise(tmp_path: Path) -> None:
    whole = fit(LabelSmoothing(0.2))
    with pytest.raises(RuntimeError, match="planted"):
        fit(LabelSmoothing(0.2), Checkpointer("3st"), crash_at(5), folder=tmp_path)
    result = fit(LabelSmoothing(0.2), folder=tmp_path, resume="auto")
    assert same_tensors(result.model.state_dict(), whole.model.state_dict())


def test_a_loss_that_cannot_be_smoothed_is_refused() -> None:
    with pytest.raises(SetupError, match=r"LabelSmoothing: the loss is not an nn\.CrossEntropyLoss"):
        fit(LabelSmoothing(), loss=nn.functional.cross_entropy)
    with pytest.raises(SetupError, match=r"the loss is nn\.CrossEntropyLoss\(label_smoothing=0\.3\) already"):
        fit(LabelSmoothing(), loss=nn.CrossEntropyLoss(label_smoothing=0.3))


@pytest.mark.parametrize("smoothing", [0.0, 1.0, -0.1])
def test_a_fraction_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ArgumentError, match=r"LabelSmoothing\(smoothing="):
        LabelSmoothing(smoothing)
