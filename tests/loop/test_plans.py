"""What callbacks may change about the course of a run: its data, its windows, its schedulers, its model's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from hookline.callbacks import AccumulationSchedule, Checkpointer, LimitBatches, OverfitBatches
from hookline.errors import SetupError
from hookline.events import Callback
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, same_tensors
from tests.support.inside import set_accumulation


class Seen(Callback):
    """Notes the batches that are trained and evaluated on, and the ends of epochs."""

    def __init__(self) -> None:
        self.trained: list[float] = []
        self.evaluated = 0
        self.ends: list[int] = []

    def on_train_batch_start(self, run: Any) -> None:
        self.trained.append(float(run.batch[0].sum()))

    def on_eval_batch_end(self, run: Any) -> None:
        self.evaluated += 1

    def on_train_epoch_end(self, run: Any) -> None:
        self.ends.append(run.clock.batch)


class Stream:
    """Data whose length is not known."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(tiny_data(batches=self.count))


@pytest.mark.parametrize("data", [lambda: tiny_data(batches=7), lambda: Stream(7)], ids=["list", "stream"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_limit_ends_epochs_and_evaluations_early(data: Any, accumulate: int) -> None:
    seen = Seen()
    result = fit(LimitBatches(train=3, val=2), seen, train=data(), val=tiny_data(batches=5), accumulate=accumulate)
    assert seen.ends == [3, 6]
    assert result.clock.epoch == 2
    assert result.clock.step == 6 // accumulate + (accumulate == 2)
    assert seen.evaluated == 2 * 2


@pytest.mark.parametrize("data", [lambda: tiny_data(batches=3), lambda: Stream(3)], ids=["list", "stream"])
def test_a_limit_beyond_the_data_changes_nothing(data: Any) -> None:
    seen = Seen()
    fit(LimitBatches(train=30, val=30), seen, train=data(), val=tiny_data(batches=2))
    assert seen.ends == [3, 6]
    assert seen.evaluated == 4


def test_a_limit_is_of_one_fit() -> None:
    trainer = Trainer(max_duration="1ep", folder=False)
    limited, free = Seen(), Seen()
    model, data, loss = TinyModel(), tiny_data(batches=5), nn.CrossEntropyLoss()
    trainer.fit(model, data, loss=loss, optimizer=torch.optim.SGD, callbacks=[LimitBatches(train=2), limited])
    trainer.fit(model, data, loss=loss, optimizer=torch.optim.SGD, callbacks=[free], extend="1ep")
    assert (limited.ends, free.ends) == ([2], [7])


def test_the_first_epoch_can_be_repeated() -> None:
    samples = [(torch.full((4,), float(i)), i % 3) for i in range(12)]
    shuffled = DataLoader(samples, batch_size=2, shuffle=True)
    repeated, usual = Seen(), Seen()
    fit(OverfitBatches(2), repeated, train=shuffled, max_duration="3ep")
    fit(usual, train=shuffled, max_duration="3ep")
    assert repeated.trained == repeated.trained[:2] * 3
    assert repeated.trained[:2] == usual.trained[:2]
    assert usual.trained[:6] != usual.trained[6:12]


def test_another_loader_takes_the_place_of_the_one_that_was_passed() -> None:
    class Replaces(Callback):
        def on_setup(self, run: Any) -> None:
            run.loaders["train"], run.loaders["val"] = tiny_data(batches=2), tiny_data(batches=1)

    seen = Seen()
    fit(Replaces(), seen, train=tiny_data(batches=9), val=tiny_data(batches=9))
    assert seen.ends == [2, 4]
    assert seen.evaluated == 2


def widen() -> AccumulationSchedule:
    """One more batch per step in each epoch."""
    return AccumulationSchedule({0: 1, 1: 2, 2: 3})


def test_windows_that_grow_are_those_of_runs_with_that_setting() -> None:
    data = tiny_data(batches=6)
    result = fit(widen(), train=data, max_duration="3ep")
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (1, 2, 3):
        for start in range(0, 6, size):
            window = data[start : start + size]
            x, y = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert result.clock.step == 6 + 3 + 2
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], weight, atol=1e-6, rtol=0)


def test_a_resume_goes_on_with_the_window_that_a_callback_chose(tmp_path: Path) -> None:
    data = tiny_data(batches=6)
    whole = fit(
        widen(), Checkpointer(every="1st", keep_last=None), train=data, max_duration="3ep", folder=tmp_path / "whole"
    )
    again = fit(
        widen(),
        train=data,
        max_duration="3ep",
        folder=tmp_path / "again",
        resume=tmp_path / "whole" / "checkpoints" / "step-00000007",
    )
    assert same_tensors(again.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_a_window_that_cannot_be_is_refused(size: Any) -> None:
    class Wrong(Callback):
        def on_train_epoch_start(self, run: Any) -> None:
            set_accumulation(run, size)

    with pytest.raises(SetupError, match=r"run\.accumulate"):
        fit(Wrong())


class Prune(Callback):
    """Changes the names in the state dict, at a step."""

    structural = True
    state = ("done",)

    def __init__(self) -> None:
        self.done = False
        self.model: Any = None

    def on_setup(self, run: Any) -> None:
        self.model = run.task.model

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == 3:
            self.act()

    def act(self) -> None:
        layer = next(part for part in self.model.modules() if isinstance(part, nn.Linear))
        prune.l1_unstructured(layer, "weight", amount=0.5)
        self.done = True

    def load_state_dict(self, state: Any) -> None:
        if state["done"] and not self.done:
            self.act()


def test_what_changes_the_parts_of_a_model_is_loaded_before_its_weights(tmp_path: Path) -> None:
    whole = fit(Prune(), Checkpointer(every="1st", keep_last=None), folder=tmp_path / "run", max_duration="8st")
    saved = tmp_path / "run" / "checkpoints" / "step-00000005"
    again = fit(Prune(), folder=tmp_path / "again", max_duration="8st", resume=saved)
    assert any(name.endswith("weight_mask") for name in whole.model.state_dict())
    assert same_tensors(again.model.state_dict(), whole.model.state_dict())
