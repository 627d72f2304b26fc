"""The search for a learning rate: the right curve, the right suggestion, and not a bit of it left in training."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.schedule import LRFinder
from hookline.callbacks.schedule._finders import rates, steepest
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Loop, Result, Task
from hookline.records import ImageRow, from_json
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, same_tensors, sgd

momentum_sgd = partial(sgd, lr=0.05, momentum=0.9)


def loader() -> DataLoader[Any]:
    x, y = (torch.cat(part) for part in zip(*tiny_data(batches=8), strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)


def fit_shuffled(*callbacks: Any, **options: Any) -> Any:
    """Two epochs of eight shuffled batches."""
    options = {"model": TinyModel(dropout=0.3), "train": loader(), "optimizer": momentum_sgd, "seed": 3, **options}
    return fit(*callbacks, val=tiny_data(seed=1), **options)


def test_the_losses_are_those_of_a_plain_loop_at_these_rates() -> None:
    data = tiny_data(batches=5)
    finder = LRFinder(1e-4, 1.0, num_training_steps=20, early_stop_threshold=None, plot=False)
    fit_shuffled(finder, model=TinyModel(), train=data)
    model = TinyModel()
    optimizer = momentum_sgd(model.parameters())
    expected = []
    for step, lr in enumerate(np.geomspace(1e-4, 1.0, 20)):
        optimizer.param_groups[0]["lr"] = float(lr)
        x, y = data[step % 5]  # a short loader begins again
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert finder.lrs == pytest.approx(np.geomspace(1e-4, 1.0, 20).tolist())
    assert finder.losses == pytest.approx(expected, rel=1e-5)


def test_the_smoothed_losses_are_a_mean_without_bias() -> None:
    finder = LRFinder(1e-4, 0.1, num_training_steps=15, smoothing=0.9, early_stop_threshold=None, plot=False)
    fit_shuffled(finder)
    mean = 0.0
    for index, (raw, smooth) in enumerate(zip(finder.losses, finder.smoothed, strict=True)):
        mean = 0.9 * mean + 0.1 * raw
        assert smooth == pytest.approx(mean / (1 - 0.9 ** (index + 1)))


def test_the_suggestion_is_the_steepest_place_of_the_curve() -> None:
    finder = LRFinder(1e-4, 10.0, num_training_steps=60, plot=False)
    fit_shuffled(finder, max_duration="1st")
    inside = np.array(finder.smoothed[10:-1])
    assert finder.suggestion == finder.lrs[10 + int(np.gradient(inside).argmin())]
    assert 1e-4 < finder.suggestion < 10.0


def test_slopes_are_those_of_numpy() -> None:
    losses = np.random.default_rng(0).normal(size=40).tolist()
    assert steepest(losses, skip_begin=5, skip_end=3) == 5 + int(np.gradient(np.array(losses[5:-3])).argmin())
    assert rates(1.0, 5.0, 5, linear=True) == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("mode", ["exponential", "linear"])
@pytest.mark.parametrize("make_train", [loader, tiny_data], ids=["loader", "list"])
def test_training_is_bitwise_what_it_is_without_it(mode: Any, make_train: Any, tmp_path: Path) -> None:
    def run(*callbacks: Any, name: str) -> tuple[Result, Any]:
        kept: list[Any] = []
        keep = LambdaCallback(on_train_end=lambda run: kept.append(run.optimizers["SGD"].state_dict()))
        result = fit_shuffled(
            *callbacks,
            keep,
            train=make_train(),
            scheduler=lambda o: LambdaLR(o, lambda step: 0.9**step),
            folder=tmp_path / name,
            log_every="1st",
        )
        return result, kept[0]

    plain, optimizer = run(name="plain")
    found, same = run(LRFinder(num_training_steps=25, mode=mode), name="found")
    assert same_tensors(found.model.state_dict(), plain.model.state_dict())
    assert plain.history["train/loss"] == found.history["train/loss"]
    assert plain.history["val/loss"] == found.history["val/loss"]
    assert optimizer["param_groups"] == same["param_groups"]
    for index, state in optimizer["state"].items():
        assert torch.equal(same["state"][index]["momentum_buffer"], state["momentum_buffer"])


class Shifted(Task[Any]):
    """Its loss is lower by so much: the curve is the same, the numbers are not."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.net, self.by = TinyModel(), by

    def configure_optimizers(self, run: Any) -> Any:
        return momentum_sgd(self.parameters())

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1]) - self.by

    def eval_batch(self, run: Any, batch: Any) -> Any:
        return self.train_batch(run, batch)


@pytest.mark.parametrize("by", [0.9, 1.05, 5.0], ids=["near zero", "around zero", "negative"])
def test_a_loss_near_zero_or_below_is_searched_as_far_as_any_other(by: float) -> None:
    def search(lower: float) -> LRFinder:
        finder = LRFinder(plot=False)
        fit(finder, model=Shifted(lower), max_duration="1st")
        return finder

    positive, shifted = search(0.0), search(by)
    assert len(positive.lrs) == 100
    assert shifted.lrs == positive.lrs
    assert shifted.suggestion == positive.suggestion


class Scripted(Shifted):
    """Its losses fall to zero, tremble there, and rise."""

    def train_batch(self, run: Any, batch: Any) -> Any:
        losses = [1 - step / 50 for step in range(51)] + [0.01, 0.03, 0.02] * 10 + [2.9, 3.1, 3.2]
        self.step = getattr(self, "step", -1) + 1
        return losses[min(self.step, len(losses) - 1)] + 0 * self.net(batch[0]).sum()


def test_a_loss_that_has_fallen_to_zero_may_tremble_before_the_search_ends() -> None:
    finder = LRFinder(smoothing=0.0, plot=False)
    fit(finder, model=Scripted(0.0), max_duration="1st")
    assert finder.losses[-1] == pytest.approx(3.1)  # more than thrice the fall


def test_a_negative_loss_that_explodes_ends_the_search() -> None:
    finder = LRFinder(1e-3, 1e6, num_training_steps=100, smoothing=0.5, plot=False)
    fit(finder, model=Shifted(5.0), max_duration="1st")
    assert math.isfinite(finder.losses[-1])
    assert len(finder.lrs) < 100


def test_it_ends_early_when_the_loss_explodes() -> None:
    finder = LRFinder(1e-3, 1e6, num_training_steps=100, smoothing=0.5, plot=False)
    fit_shuffled(finder)
    assert len(finder.lrs) < 100
    assert finder.smoothed[-1] > 4 * min(finder.smoothed) or not math.isfinite(finder.losses[-1])


def test_a_loss_that_is_not_finite_ends_it_and_is_no_suggestion() -> None:
    finder = LRFinder(
        1e-3, 1e300, num_training_steps=60, early_stop_threshold=None, skip_begin=0, skip_end=0, plot=False
    )
    result = fit_shuffled(finder)
    assert not math.isfinite(finder.losses[-1])
    assert len(finder.lrs) < 60
    assert finder.suggestion != finder.lrs[-1]
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


def test_no_fall_is_no_suggestion_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 3) + 0 * self.weight

    finder = LRFinder(num_training_steps=20, apply=True, plot=False)
    seen: list[float] = []
    note = LambdaCallback(on_train_start=lambda run: seen.append(run.optimizers["SGD"].param_groups[0]["lr"]))
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_shuffled(finder, note, model=Flat())
    assert finder.suggestion is None
    assert seen == [0.05]
    assert "no suggestion: the loss fell nowhere" in caplog.text


def test_the_curve_is_drawn_and_logged(tmp_path: Path) -> None:
    finder = LRFinder(num_training_steps=20)
    fit_shuffled(finder, folder=tmp_path / "run")
    assert (tmp_path / "run" / "lr_finder.png").read_bytes().startswith(b"\x89PNG")
    rows = map(from_json, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [row.name for row in rows if isinstance(row, ImageRow)] == ["plots/lr_finder"]


def test_it_runs_once_also_over_a_resume(tmp_path: Path) -> None:
    def make() -> LRFinder:
        return LRFinder(1e-4, 1.0, num_training_steps=20, apply=True, plot=False)

    whole = make()
    straight = fit_shuffled(whole)
    with pytest.raises(RuntimeError, match="planted"):
        fit_shuffled(make(), crash_at(5, "train_step_start"), Checkpointer("1st"), folder=tmp_path / "run")
    finder = make()
    searches: list[Any] = []
    finder._search = lambda *args: searches.append(args)  # type: ignore[method-assign]
    again = fit_shuffled(finder, Checkpointer("1st"), folder=tmp_path / "run", resume="auto")
    assert searches == []
    assert finder.state_dict() == whole.state_dict()
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def test_several_optimizers_need_a_name() -> None:
    def two(parameters: Any) -> Any:
        first, *others = parameters
        return {"first": torch.optim.SGD([first], lr=0.1), "rest": torch.optim.SGD(others, lr=0.1)}

    result = fit_shuffled(LRFinder(num_training_steps=20, plot=False), optimizer=two)
    assert "there is first, rest" in str(result.failures[0].error)  # it is optional: the run goes on
    finder = LRFinder(num_training_steps=20, plot=False, optimizer="rest")
    assert fit_shuffled(finder, optimizer=two).failures == ()
    assert len(finder.lrs) == 20


def test_an_own_loop_is_told_what_to_use() -> None:
    model = TinyModel()
    finder = LRFinder(num_training_steps=20, plot=False)
    loop = Loop(
        model, momentum_sgd(model.parameters()), callbacks=[finder], max_duration="1ep", folder=False, device="cpu"
    )
    with pytest.raises(SetupError, match=r"use Trainer\.fit or hl\.fit"), loop:
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_lr": 0.0}, "0 < min_lr < max_lr"),
        ({"min_lr": 1.0, "max_lr": 0.1}, "0 < min_lr < max_lr"),
        ({"num_training_steps": 2}, r"LRFinder\(num_training_steps="),
        ({"num_training_steps": 11}, r"LRFinder\(num_training_steps="),
        ({"mode": "cosine"}, "'exponential' or 'linear'"),
        ({"smoothing": 1.0}, r"LRFinder\(smoothing=1\.0\): must be >= 0 and < 1\."),
        (
            {"early_stop_threshold": 0.5},
            r"LRFinder\(early_stop_threshold=0\.5\): must be > 1, or None for no early stop\.",
        ),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LRFinder(**options)
