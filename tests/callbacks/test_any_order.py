"""Averaged weights, checkpoints, early stopping, a metric of the user's own and an evaluation, in every order.

The right result is computed by a plain loop that has none of the callbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping
from hookline.callbacks.weights import EMA
from hookline.checkpoint import Store
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd

TRAIN, VAL = tiny_data(3), tiny_data(2, seed=1)
PATIENCE, EPOCHS, DECAY = 2, 12, 0.9


class Margin(hl.Callback):
    """A user's metric: how far the right class is ahead, which declares nothing, and first rises and then falls."""

    def on_eval_start(self, run: Any) -> None:
        self.found: list[Tensor] = []

    def on_eval_batch_end(self, run: Any) -> None:
        self.found.append(margins(run.outputs, run.batch[1]))

    def on_eval_end(self, run: Any) -> None:
        run.log({"val/margin": score(torch.cat(self.found), run.clock.epoch)})


def margins(outputs: Tensor, classes: Tensor) -> Tensor:
    right = outputs.gather(1, classes[:, None]).squeeze(1)
    return right - outputs.mean(1)


def score(found: Tensor, epoch: int) -> float:
    return found.mean().item() - 0.012 * epoch**2


quick_sgd = partial(sgd, lr=0.2, momentum=0.5)


class Expected:
    """A plain loop: train, average, evaluate the average, stop when the score has not risen for two epochs."""

    def __init__(self) -> None:
        model = TinyModel()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        optimizer = quick_sgd(model.parameters())
        self.margins: list[float] = []
        self.losses: list[float] = []
        self.raw: dict[int, dict[str, Tensor]] = {}
        for epoch in range(1, EPOCHS + 1):
            for x, y in TRAIN:
                optimizer.zero_grad()
                CE(model(x), y).backward()
                optimizer.step()
                average.update_parameters(model)
            self.raw[3 * epoch] = copied(model)
            with torch.no_grad():
                outputs = [average(x) for x, _ in VAL]
            found = [margins(out, y) for out, (_, y) in zip(outputs, VAL, strict=True)]
            self.margins.append(score(torch.cat(found), epoch))
            self.losses.append(sum(CE(out, y).item() for out, (_, y) in zip(outputs, VAL, strict=True)) / 2)
            best = self.margins.index(max(self.margins))
            if epoch - 1 - best >= PATIENCE:
                break
        self.best_step = 3 * (best + 1)
        self.average = copied(average.module)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def expected() -> Expected:
    return Expected()


def callbacks() -> list[hl.Callback]:
    return [
        EMA(DECAY),
        Checkpointer("1ep", monitor="val/margin", mode="max", keep_last=2, keep_best=1),
        EarlyStopping("val/margin", mode="max", patience=PATIENCE),
        Margin(),
    ]


def fit_in(order: Sequence[int], *more: hl.Callback, **options: Any) -> Any:
    listed = callbacks()
    chosen = [listed[index] for index in order]
    return fit(*chosen, *more, train=TRAIN, val=VAL, optimizer=quick_sgd, max_duration=f"{EPOCHS}ep", **options)


def test_the_plain_loop_stops_in_the_middle(expected: Expected) -> None:
    """Else the orders would be compared on a run in which nothing is decided."""
    assert 2 < len(expected.margins) < EPOCHS
    assert 3 < expected.best_step < 3 * len(expected.margins)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
def test_every_order_gives_the_right_result(order: Sequence[int], expected: Expected, tmp_path: Path) -> None:
    result = fit_in(order, folder=tmp_path)
    assert result.stopped_by == "EarlyStopping"
    assert result.history["val/margin"] == pytest.approx(expected.margins, rel=1e-6)
    assert result.history["val/loss"] == pytest.approx(expected.losses, rel=1e-6)
    assert same_tensors(copied(result.model), expected.average)
    last = 3 * len(expected.margins)
    saved = Store(tmp_path / "checkpoints").checkpoints()
    assert {checkpoint.about.step for checkpoint in saved} == {last - 3, last, expected.best_step}
    assert result.best_checkpoint.name == f"step-{expected.best_step:08d}"
    for checkpoint in saved:
        assert same_tensors(load_file(checkpoint.path / "model.safetensors"), expected.raw[checkpoint.about.step])
        margin = expected.margins[checkpoint.about.step // 3 - 1]
        assert checkpoint.about.metrics["val/margin"] == pytest.approx(margin, rel=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_a_run_goes_on_in_another_order(order: Sequence[int], expected: Expected, tmp_path: Path) -> None:
    class Leaves(hl.Callback):
        reads = ("*",)

        def on_train_epoch_start(self, run: Any) -> None:
            if run.clock.epoch == 2:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        fit_in(range(4), Leaves(), folder=tmp_path)
    result = fit_in(order, model=TinyModel(seed=9), folder=tmp_path, resume="auto")
    assert result.history["val/margin"] == pytest.approx(expected.margins, rel=1e-6)
    assert same_tensors(copied(result.model), expected.average)
