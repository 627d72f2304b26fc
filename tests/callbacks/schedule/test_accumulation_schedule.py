"""How many batches make a step, as training continues."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookline.callbacks import Checkpointer
from hookline.callbacks.schedule import AccumulationSchedule
from hookline.errors import ArgumentError, DurationError
from hookline.events import Callback
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, same_tensors, sgd


class Windows(Callback):
    """The batches of each step, and the epoch of its end."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._batches = 0

    def on_train_batch_end(self, run: Any) -> None:
        self._batches += 1

    def on_train_step_end(self, run: Any) -> None:
        self.sizes.append(self._batches)
        self._batches = 0


fit_six_batches = partial(fit, train=tiny_data(6), max_duration="3ep")


def sizes(scheduling: Any, **options: Any) -> list[int]:
    windows = Windows()
    fit_six_batches(AccumulationSchedule(scheduling), windows, **options)
    return windows.sizes


def test_each_epoch_has_its_own_number_of_batches_a_step() -> None:
    assert sizes({0: 3, 1: 2, 2: 6}) == [3, 3, 2, 2, 2, 6]


def test_the_last_window_of_an_epoch_may_be_short() -> None:
    assert sizes({0: 4, 2: 5}) == [4, 2, 4, 2, 5, 1]


def test_before_its_first_moment_that_of_the_trainer_holds() -> None:
    assert sizes({1: 3}, accumulate=2) == [2, 2, 2, 3, 3, 3, 3]


def test_a_trainer_that_says_otherwise_is_overruled_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        assert sizes({0: 3}, accumulate=2) == [3] * 6
    assert "begins with 3 batches per step; accumulate=2 of the trainer is not used" in caplog.text


def test_moments_can_be_steps_samples_and_shares() -> None:
    assert sizes({"2st": 2, "4st": 4}, max_duration="1ep", train=tiny_data(10)) == [1, 1, 2, 2, 4]
    assert sizes({"16sp": 3}, max_duration="1ep", train=tiny_data(8)) == [1, 1, 3, 3]  # eight samples a batch
    assert sizes({"0.5dur": 2}, max_duration="4st", train=tiny_data(12)) == [1, 1, 2, 2]


def test_the_update_of_a_window_is_that_of_its_samples_together() -> None:
    """An independent loop: the mean loss over all samples of the window, a short one included."""
    found = fit_six_batches(AccumulationSchedule({0: 4}), max_duration="1ep").model.state_dict()
    model, data = TinyModel(), tiny_data(batches=6)
    optimizer = sgd(model.parameters())
    for window in (data[:4], data[4:]):
        x, y = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("scheduling", [{0: 2, 1: 3, 2: 1}, {"2st": 3, "5st": 2}, {"40sp": 3, "90sp": 2}])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_resume_makes_the_same_steps(scheduling: Any, steps: int, tmp_path: Path) -> None:
    whole, first, second = Windows(), Windows(), Windows()
    straight = fit_six_batches(AccumulationSchedule(scheduling), whole)
    with pytest.raises(RuntimeError, match="planted"):
        fit_six_batches(
            AccumulationSchedule(scheduling),
            first,
            crash_at(steps, "train_step_start"),
            Checkpointer(f"{steps}st"),
            folder=tmp_path / "run",
        )
    again = fit_six_batches(
        AccumulationSchedule(scheduling), second, Checkpointer(f"{steps}st"), folder=tmp_path / "run", resume="auto"
    )
    assert first.sizes + second.sizes == whole.sizes
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def test_the_mapping_that_is_given_is_not_changed() -> None:
    given = {2: 2}
    sizes(given)
    assert given == {2: 2}


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        ({}, r"AccumulationSchedule\(scheduling="),
        ([2, 3], r"AccumulationSchedule\(scheduling="),
        ({-1: 2}, r"AccumulationSchedule\(scheduling=\{-1: …\}\): must be >= 0\. The first epoch is 0\."),
        ({0: 0}, r"AccumulationSchedule\(scheduling="),
        ({0: 1.5}, r"AccumulationSchedule\(scheduling="),
        ({0: True}, r"AccumulationSchedule\(scheduling="),
        ({1: 2, "5st": 3}, r"AccumulationSchedule\(scheduling="),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(scheduling: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AccumulationSchedule(scheduling)


def test_a_moment_that_is_no_duration_is_an_error_with_the_units() -> None:
    with pytest.raises(DurationError, match="The units"):
        AccumulationSchedule({"soon": 2})
