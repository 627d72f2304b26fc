"""Each hook of the five other systems has an event here, and that event is sent in a real run."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import StopTraining
from hookline.events.foreign import FOREIGN_HOOKS
from hookline.events.spec import BY_NAME
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, press_ctrl_c


class Collector(hl.Callback):
    """The names of all events, over all runs, and the run's stage at each."""

    def __init__(self, seen: set[tuple[str, str]]) -> None:
        self.seen = seen

    def on_event(self, event: str, run: Any) -> None:
        self.seen.add((event, run.stage))


class At(hl.Callback):
    """Does something at one event of the first step."""

    def __init__(self, event: str, action: Any) -> None:
        self.event, self.action = event, action

    def on_event(self, event: str, run: Any) -> None:
        if event == self.event and run.clock.step <= 1:
            self.action(run)


class GoesBack(hl.Callback):
    """Takes the second step back, once."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def on_step_settled(self, run: Any) -> None:
        if not self.taken:
            self.taken.append(run.snapshot())
        elif len(self.taken) == 1:
            self.taken.append(run.roll_back(self.taken[0]))


class Fragile(hl.Callback):
    """Optional, and it fails."""

    optional = True

    def on_train_start(self, run: Any) -> None:
        raise ValueError("fragile")


def boom(run: Any) -> None:
    raise ValueError("boom")


def quit_training(run: Any) -> None:
    raise StopTraining("enough")


def in_the_way(run: Any) -> None:
    """A file where the checkpoints should go."""
    (run.folder / "checkpoints").write_text("mine")


def end(run: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """What a handful of ordinary runs send."""
    found: set[tuple[str, str]] = set()
    train = partial(
        fit,
        Collector(found),
        train=tiny_data(3),
        val=tiny_data(2),
        test=tiny_data(1),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        accumulate=2,
        eval_every="1st",
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        train()
        train(At("train_step_end", quit_training))
        train(At("train_step_end", press_ctrl_c))
        train(At("gradients_ready", lambda run: run.skip_step()))
        train(Fragile())
        train(GoesBack())
        with pytest.raises(ValueError, match="boom"):
            train(At("train_step_end", boom))
        folder = tmp_path_factory.mktemp("runs") / "mine"
        saves = {"folder": folder, "resume": "auto"}
        with pytest.raises(hl.Preempted):
            train(hl.Checkpointer("1st"), At("train_step_end", end), **saves)
        (folder / "checkpoints" / "damaged").mkdir()
        with pytest.warns(hl.HooklineWarning, match="damaged"):
            train(hl.Checkpointer("1st"), **saves)
        blocked = tmp_path_factory.mktemp("runs") / "blocked"
        train(hl.Checkpointer("1st", on_error="warn"), At("fit_start", in_the_way), folder=blocked)
    finally:
        signal.signal(signal.SIGINT, before)
    trainer = Trainer(callbacks=[Collector(found)], folder=False)
    trainer.evaluate(TinyModel(), tiny_data(2), loss=CE)
    trainer.test(TinyModel(), tiny_data(2), loss=CE)
    trainer.predict(TinyModel(), tiny_data(2))
    return found


def test_the_event_of_each_foreign_hook_is_sent(seen: set[tuple[str, str]]) -> None:
    sent = {event for event, _ in seen}
    assert len(FOREIGN_HOOKS) > 100
    assert [(row.system, row.hook, row.event) for row in FOREIGN_HOOKS if row.event not in sent] == []


def test_every_event_of_the_table_is_sent(seen: set[tuple[str, str]]) -> None:
    """An event that nothing emits is a promise that nobody keeps."""
    assert {event for event, _ in seen} == set(BY_NAME)


def test_events_are_sent_in_the_stages_that_the_table_gives(seen: set[tuple[str, str]]) -> None:
    assert [(event, stage) for event, stage in sorted(seen) if stage not in BY_NAME[event].stages] == []


def test_forward_events_are_sent_in_every_stage(seen: set[tuple[str, str]]) -> None:
    """Composer's eval_before_forward and predict_before_forward are forward_start here."""
    for event in ("forward_start", "forward_end", "batch_fetch_start", "batch_fetch_end"):
        assert {stage for name, stage in seen if name == event} == {"train", "val", "test", "predict"}
