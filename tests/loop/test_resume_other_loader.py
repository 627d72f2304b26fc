"""A run that goes on with another loader than the one it was saved with: nothing is lost, and what changes is said."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import DataError
from hookline.loop import Trainer
from tests.support import fit, sgd


def loader(batch_size: int, samples: int = 96, **options: Any) -> DataLoader[Any]:
    values = torch.arange(float(samples))[:, None]
    return DataLoader(TensorDataset(values, values), batch_size=batch_size, **{"shuffle": True, **options})


class Seen(hl.Callback):
    def __init__(self, into: list[int], stop_at: int | None = None) -> None:
        self.into, self.stop_at = into, stop_at
        self.name = "seen"

    def on_train_batch_end(self, run: hl.Run) -> None:
        self.into += [int(value) for value in run.batch[0]]

    def on_checkpoint_saved(self, run: hl.Run) -> None:
        if run.clock.step == self.stop_at:
            raise ZeroDivisionError


def train(folder: Path, data: DataLoader[Any], seen: list[int], stop_at: int | None = None, **options: Any) -> Any:
    line: Any = {"model": nn.Linear(1, 1), "loss": nn.MSELoss(), "optimizer": partial(sgd, lr=1e-6)}
    return fit(Seen(seen, stop_at), hl.Checkpointer("2st"), train=data, folder=folder, resume="auto", **line, **options)


def left(folder: Path, data: DataLoader[Any], **options: Any) -> list[int]:
    """What a run has seen that fails after four steps."""
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError):
        train(folder, data, seen, stop_at=4, **options)
    return seen


@pytest.mark.parametrize(("before", "after"), [(8, 4), (8, 16), (8, 32), (4, 16), (12, 8), (8, 1)])
def test_each_sample_of_the_epoch_comes_once_with_another_batch_size(before: int, after: int, tmp_path: Path) -> None:
    """The position was counted in batches: half of the data was left out, or came twice, without a word."""
    seen = left(tmp_path, loader(before))
    result = train(tmp_path, loader(after), seen)
    assert Counter(seen) == dict.fromkeys(range(96), 2)
    assert result.clock.sample == 2 * 96


def test_a_batch_size_that_fits_nowhere_is_refused_before_the_first_step(tmp_path: Path) -> None:
    left(tmp_path, loader(8))
    seen: list[int] = []
    with pytest.raises(DataError, match=r"has had 32 samples of epoch 0, in batches of 8, and with batch_size=5"):
        train(tmp_path, loader(5), seen)
    assert seen == []


@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 4)])
def test_a_second_fit_goes_on_with_another_batch_size_in_the_middle_of_an_epoch(before: int, after: int) -> None:
    """It counted batches of the other loader: samples were left out, or came twice, without a word."""
    seen: list[int] = []
    stop = hl.on("train_step_end", at="4st")(lambda run: run.stop("enough"))
    trainer = Trainer(max_duration="2ep", folder=False, seed=0, callbacks=[Seen(seen)])
    model, loss = nn.Linear(1, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trainer.fit(model, loader(before), loss=loss, optimizer=optimizer, callbacks=[stop])
    assert len(seen) == 4 * before
    trainer.fit(model, loader(after), loss=loss, optimizer=optimizer)
    assert Counter(seen) == dict.fromkeys(range(96), 2)


def test_other_data_from_the_beginning_of_an_epoch_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(max_duration="1ep", folder=False, seed=0)
    model, loss = nn.Linear(1, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trainer.fit(model, loader(8), loss=loss, optimizer=optimizer)
    result = trainer.fit(model, loader(5, samples=40), loss=loss, optimizer=optimizer, extend="1ep")
    assert result.clock.step == 12 + 8
    assert not [record for record in caplog.records if "training data" in record.message]


def test_any_batch_size_goes_on_from_the_end_of_an_epoch(tmp_path: Path) -> None:
    left(tmp_path, loader(24))
    seen: list[int] = []
    assert train(tmp_path, loader(5), seen).clock.epoch == 2
    assert Counter(seen) == dict.fromkeys(range(96), 1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (loader(8, samples=104), "samples in the training data: 96 → 104"),
        (loader(8, shuffle=False), "sampler: RandomSampler → SequentialSampler"),
    ],
)
def test_other_data_is_said_before_the_first_step(
    changed: DataLoader[Any], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left(tmp_path, loader(8))
    with caplog.at_level(logging.WARNING, "hookline"):
        train(tmp_path, changed, [])
    assert any(words in message and "may come twice" in message for message in caplog.messages)


def test_a_seed_that_is_not_used_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left(tmp_path, loader(8))
    with caplog.at_level(logging.WARNING, "hookline"):
        train(tmp_path, loader(8), [], seed=1)
    assert "seed=1 is not used: the run continues with its own, 0" in caplog.messages


def test_the_same_loader_is_no_cause_for_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left(tmp_path, loader(8))
    with caplog.at_level(logging.WARNING, "hookline"):
        train(tmp_path, loader(8), [])
    expected = ("resumed from", "resumes with stop_at=None")
    assert [message for message in caplog.messages if not any(part in message for part in expected)] == []
