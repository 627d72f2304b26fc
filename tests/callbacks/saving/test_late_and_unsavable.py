"""A ``Checkpointer`` that joins a run under way; states that cannot be saved, where only weights are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import StateError
from hookline.testing import tiny_data
from tests.support import at_step, fit, saved_steps

fit_one_epoch = partial(fit, train=tiny_data(20), max_duration="8st")


def add_at(step: int, callback: hl.Callback) -> hl.Callback:
    return at_step(step, lambda run: run.callbacks.add(callback))


class Unsavable(hl.Callback):
    """Its state is a function."""

    state = ("rule",)

    def __init__(self) -> None:
        self.rule = print


@pytest.mark.parametrize(("every", "expected"), [("1st", [4, 5, 6, 7, 8]), ("2st", [4, 6, 8]), ("24sp", [6])])
def test_a_checkpointer_that_joins_saves_from_the_next_step_on(tmp_path: Path, every: str, expected: list[int]) -> None:
    """Its first checkpoints would come only when something else is due, which may be hours later."""
    fit_one_epoch(add_at(3, hl.Checkpointer(every, at_end=False, keep_last=None)), folder=tmp_path)
    assert saved_steps(tmp_path) == expected


def test_a_checkpointer_that_joins_is_in_time_for_the_end(tmp_path: Path) -> None:
    fit_one_epoch(add_at(8, hl.Checkpointer("100st")), folder=tmp_path)
    assert [found.about.finished for found in Store(tmp_path / "checkpoints").checkpoints()] == [True]


def test_weights_alone_are_saved_also_where_the_rest_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit_one_epoch(Unsavable(), hl.Checkpointer("4st", weights_only=True), folder=tmp_path)
    assert saved_steps(tmp_path) == [4, 8]
    assert "only weights can be saved, also when a signal comes: callbacks/Unsavable()/state/rule" in caplog.text


def test_a_full_checkpointer_beside_one_of_weights_refuses_what_it_cannot_save(tmp_path: Path) -> None:
    weights = hl.Checkpointer("4st", weights_only=True, folder="weights")
    with pytest.raises(StateError, match=r"callbacks/Unsavable\(\)/state/rule"):
        fit_one_epoch(Unsavable(), weights, hl.Checkpointer("4st"), folder=tmp_path)
