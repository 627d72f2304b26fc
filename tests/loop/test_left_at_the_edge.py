"""A signal at any event around the end of an epoch: the resumed run is the run that was never left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, state_of

PER_EPOCH = 4
EVENTS = (
    "train_step_end", "metrics_ready", "train_epoch_end", "eval_start", "eval_batch_end", "eval_end", "epoch_end",
    "step_settled", "checkpoint_saved",
)  # fmt: skip
PAUSE = None
"""Stands for ``run.pause()`` in place of a signal."""
EDGE = ("train_epoch_start", "train_epoch_end", "eval_start", "epoch_end")


class NoLength:
    """A loader that does not know how long it is."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tiny_data(batches=PER_EPOCH))


class Signals(hl.Callback):
    """Raises a signal at an event of the last step of the first epoch."""

    def __init__(self, event: str, number: int) -> None:
        self.event, self.number, self.is_raised = event, number, False

    def on_event(self, event: str, run: hl.Run) -> None:
        if event == self.event and run.clock.step == PER_EPOCH and not self.is_raised:
            self.is_raised = True
            signal.raise_signal(self.number)


class Pauses(Signals):
    """Pauses the run at an event of the last step of the first epoch."""

    def on_event(self, event: str, run: hl.Run) -> None:
        if event == self.event and run.clock.step == PER_EPOCH and not self.is_raised:
            self.is_raised = True
            run.pause("tried")


class Diary(hl.Callback):
    """Keeps the events around the ends of epochs."""

    state = ("seen",)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        if event in EDGE:
            self.seen = [*self.seen, f"{event} at step {run.clock.step}"]


def outcome(folder: Path, data: Callable[[], Any], *callbacks: object, **options: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    diary, model = Diary(), TinyModel(dropout=0.3)
    result = fit(
        diary, *callbacks, model=model, train=data(), val=tiny_data(batches=2), folder=folder, max_duration="3ep",
        seed=1, **options,
    )  # fmt: skip
    losses = [(row.step, row.value) for row in result.history.rows() if row.name == "val/loss"]
    return state_of(model), diary.seen, losses


@pytest.mark.parametrize(
    ("savers", "number"),
    [
        (lambda: [hl.Checkpointer("1ep", at_end=False)], signal.SIGINT),
        (lambda: [hl.Checkpointer("1ep", at_end=False)], signal.SIGTERM),
        (lambda: [hl.Checkpointer()], signal.SIGINT),
        (lambda: [hl.Checkpointer()], signal.SIGTERM),
        (list, signal.SIGTERM),
        (list, PAUSE),
    ],
)
@pytest.mark.parametrize("data", [lambda: tiny_data(batches=PER_EPOCH), NoLength])
def test_a_run_left_by_a_signal_at_the_end_of_an_epoch_loses_nothing(
    data: Callable[[], Any], savers: Callable[[], list[object]], number: int | None, tmp_path: Path
) -> None:
    weights, seen, losses = outcome(tmp_path / "whole", data, *savers())
    wrong = []
    for event in EVENTS:
        leaves = Pauses(event, 0) if number is PAUSE else Signals(event, number)
        try:
            outcome(tmp_path / event, data, *savers(), leaves)
        except SystemExit:
            assert number == signal.SIGTERM, event
        if not leaves.is_raised:
            assert event == "checkpoint_saved", event  # Nothing saves without a Checkpointer.
            continue
        its, saw, found = outcome(tmp_path / event, data, *savers(), resume="auto")
        same = all(torch.equal(its[name], weights[name]) for name in weights)
        if not same or saw != seen or found != losses:
            wrong.append((event, same, saw, found))
    assert not wrong, (seen, losses)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("event", ["train_start", "eval_start", "eval_end", "epoch_end", "step_settled"])
def test_a_run_left_again_while_it_makes_up_an_evaluation_loses_nothing(
    event: str, number: int, tmp_path: Path
) -> None:
    def data() -> Any:
        return tiny_data(batches=PER_EPOCH)

    weights, seen, losses = outcome(tmp_path / "whole", data)
    for left_at in ("train_epoch_end", event):
        signals = Signals(left_at, number)
        try:
            outcome(tmp_path / "left", data, hl.Checkpointer(), signals, resume="auto")
        except SystemExit:
            assert number == signal.SIGTERM
        assert signals.is_raised, left_at
    its, saw, found = outcome(tmp_path / "left", data, hl.Checkpointer(), resume="auto")
    assert all(torch.equal(its[name], weights[name]) for name in weights)
    assert (saw, found) == (seen, losses)
