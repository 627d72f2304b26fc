"""A ``Checkpointer`` that joins a run under way; states that cannot be saved, where only weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import StateError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data


def fit(folder: Any, *callbacks: object, **options: Any) -> Any:
    trainer = Trainer(folder=folder, callbacks=callbacks, **{"max_duration": "8st", "seed": 0, **options})
    return trainer.fit(TinyModel(), tiny_data(20), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


class Add(hl.Callback):
    """Adds a callback after a step."""

    def __init__(self, step: int, callback: hl.Callback) -> None:
        self.step, self.callback = step, callback

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == self.step:
            run.callbacks.add(self.callback)


class Unsavable(hl.Callback):
    """Its state is a function."""

    state = ("rule",)

    def __init__(self) -> None:
        self.rule = print


@pytest.mark.parametrize(("every", "expected"), [("1st", [4, 5, 6, 7, 8]), ("2st", [4, 6, 8]), ("24sp", [6])])
def test_a_checkpointer_that_joins_saves_from_the_next_step_on(tmp_path: Path, every: str, expected: list[int]) -> None:
    """Its first checkpoints would come only when something else is due, which may be hours later."""
    fit(tmp_path, Add(3, hl.Checkpointer(every, at_end=False, keep_last=None)))
    assert [found.about.step for found in Store(tmp_path / "checkpoints").checkpoints()] == expected


def test_a_checkpointer_that_joins_is_in_time_for_the_end(tmp_path: Path) -> None:
    fit(tmp_path, Add(8, hl.Checkpointer("100st")))
    assert [found.about.finished for found in Store(tmp_path / "checkpoints").checkpoints()] == [True]


def test_weights_alone_are_saved_also_where_the_rest_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, Unsavable(), hl.Checkpointer("4st", weights_only=True))
    assert [found.about.step for found in Store(tmp_path / "checkpoints").checkpoints()] == [4, 8]
    assert "only weights can be saved, also when a signal comes: callbacks/Unsavable()/state/rule" in caplog.text


def test_a_full_checkpointer_beside_one_of_weights_refuses_what_it_cannot_save(tmp_path: Path) -> None:
    weights = hl.Checkpointer("4st", weights_only=True, dirpath="weights")
    with pytest.raises(StateError, match=r"callbacks/Unsavable\(\)/state/rule"):
        fit(tmp_path, Unsavable(), weights, hl.Checkpointer("4st"))
