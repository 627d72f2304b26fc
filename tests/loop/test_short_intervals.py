"""Intervals that an epoch cuts short: no mean of a few batches stands beside means of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

CE = nn.CrossEntropyLoss()


def still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


class Numbered(hl.Callback):
    """Logs the number of each step, so that a mean says which steps are in it."""

    def on_train_step_end(self, run: hl.Run) -> None:
        run.log({"number": float(run.clock.step)})
        run.log({"largest": float(run.clock.step)}, reduce="max")
        run.log({"steps": 1.0}, reduce="sum")


def trained(batches: int, log_every: str, max_duration: str = "3ep", **options: Any) -> hl.History:
    trainer = Trainer(
        max_duration=max_duration, log_every=log_every, callbacks=[Numbered()], **{"folder": False, **options}
    )
    result = trainer.fit(TinyModel(), tiny_data(batches), loss=CE, optimizer=still)
    return result.history


def rows(history: hl.History, name: str = "train/number") -> dict[int, float]:
    return dict(zip(history.steps(name), history[name], strict=True))


def mean(first: int, last: int) -> float:
    return (first + last) / 2


def test_a_short_rest_of_an_epoch_is_averaged_with_the_interval_before_it() -> None:
    """One that monitors train/loss would else stop by the mean of a batch or two."""
    found = trained(13, "10st", "2ep")
    assert rows(found) == {10: mean(1, 10), 13: mean(1, 13), 20: mean(14, 20), 26: mean(21, 26)}
    assert rows(found, "train/number_epoch") == {13: mean(1, 13), 26: mean(14, 26)}


def test_what_was_not_logged_in_the_interval_before_is_of_the_rest_alone() -> None:
    class Rarely(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step <= 10 or run.clock.step > 30:
                run.log({"rare": 100.0 if run.clock.step <= 10 else 0.0})

    trainer = Trainer(max_duration="1ep", log_every="10st", callbacks=[Rarely()], folder=False)
    found = trainer.fit(TinyModel(), tiny_data(33), loss=CE, optimizer=still).history
    assert rows(found, "train/rare") == {10: 100.0, 33: 0.0}


def test_intervals_in_another_unit_begin_anew_after_a_resume(tmp_path: Path) -> None:
    """A number of samples was taken for a number of steps, and no row was written until so many steps had come."""

    def fails(run: hl.Run) -> None:
        if run.clock.step == 20:
            raise ZeroDivisionError

    def fit(log_every: str, *callbacks: Any) -> hl.Result:
        every = [Numbered(), hl.Checkpointer("10st"), *callbacks]
        options: dict[str, Any] = {"folder": tmp_path, "resume": "auto", "log_every": log_every}
        trainer = Trainer(max_duration="40st", callbacks=every, **options)
        return trainer.fit(TinyModel(), tiny_data(80), loss=CE, optimizer=still)

    with pytest.raises(ZeroDivisionError):
        fit("40sp", hl.LambdaCallback(on_checkpoint_saved=fails))
    result = fit("5st")
    assert [step for step in result.history.steps("train/number") if step > 20] == [25, 30, 35, 40]


def test_what_is_logged_at_the_end_of_training_is_of_no_epoch() -> None:
    class AtEnd(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"value": 0.0})

        def on_train_end(self, run: hl.Run) -> None:
            run.log({"train/value": 100.0})

    trainer = Trainer(max_duration="1ep", log_every="10st", callbacks=[AtEnd()], folder=False)
    model, data = TinyModel(), tiny_data(4)
    optimizer = still(model.parameters())
    with pytest.warns(hl.HooklineWarning, match="train/value was logged again for step 4"):
        trainer.fit(model, data, loss=CE, optimizer=optimizer)
    result = trainer.fit(model, data, loss=CE, optimizer=optimizer, extend="1ep")
    assert rows(result.history, "train/value_epoch") == {4: 0.0, 8: 0.0}
    assert rows(result.history, "train/value")[8] == 0.0


def test_other_reductions_are_of_the_rest_alone() -> None:
    """A sum that is counted twice would be wrong."""
    found = trained(13, "10st", "2ep")
    assert rows(found, "train/steps") == {10: 10.0, 13: 3.0, 20: 7.0, 26: 6.0}
    assert rows(found, "train/largest") == {step: float(step) for step in (10, 13, 20, 26)}


def test_a_rest_of_half_an_interval_has_a_row_of_its_own() -> None:
    assert rows(trained(15, "10st", "2ep")) == {10: mean(1, 10), 15: mean(11, 15), 20: mean(16, 20), 30: mean(21, 30)}


def test_an_epoch_that_is_shorter_than_an_interval_is_one_row() -> None:
    """A multiple of log_every just after its start would be a row of one step."""
    assert rows(trained(9, "10st", "3ep")) == {9: mean(1, 9), 18: mean(10, 18), 27: mean(19, 27)}


def test_the_last_row_of_a_run_that_ends_inside_an_epoch_is_no_short_one() -> None:
    assert rows(trained(100, "10st", "22st")) == {10: mean(1, 10), 20: mean(11, 20), 22: mean(11, 22)}


@given(batches=st.integers(1, 24), every=st.integers(1, 12), epochs=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_each_row_is_of_half_an_interval_or_of_all_that_its_epoch_has(batches: int, every: int, epochs: int) -> None:
    found = trained(batches, f"{every}st", f"{epochs}ep")
    for step, value in rows(found).items():
        first = 2 * value - step  # of the steps that are in the mean
        begins = (step - 1) // batches * batches + 1
        assert first >= 1
        assert step - first + 1 >= every / 2 or first == begins
    wholes = {last: mean(last - batches + 1, last) for last in range(batches, batches * epochs + 1, batches)}
    assert rows(found, "train/number_epoch") == pytest.approx(wholes)
    assert set(wholes) <= set(rows(found))


@pytest.mark.parametrize("at", [11, 13, 14, 20, 24])
def test_rows_are_the_same_after_a_resume(at: int, tmp_path: Path) -> None:
    """What the interval before has come to is part of the state."""

    def run(folder: Path, duration: str) -> hl.History:
        callbacks = [Numbered(), hl.Checkpointer(f"{at}st")]
        trainer = Trainer(
            max_duration=duration, log_every="10st", callbacks=callbacks, folder=folder, resume="auto", seed=0
        )
        return trainer.fit(TinyModel(), tiny_data(13), loss=CE, optimizer=still).history

    class Leaves(hl.Callback):
        def on_checkpoint_saved(self, run: hl.Run) -> None:
            raise ZeroDivisionError

    whole = rows(run(tmp_path / "whole", "2ep"))
    with pytest.raises(ZeroDivisionError):
        Trainer(
            max_duration="2ep",
            log_every="10st",
            callbacks=[Numbered(), hl.Checkpointer(f"{at}st"), Leaves()],
            folder=tmp_path / "left",
            seed=0,
        ).fit(TinyModel(), tiny_data(13), loss=CE, optimizer=still)
    assert rows(run(tmp_path / "left", "2ep")) == whole


def test_early_stopping_on_the_training_loss_sees_no_mean_of_a_batch() -> None:
    """The loss of the last batches is small by chance; every epoch is better than the one before."""

    class Falls(hl.Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def configure_optimizers(self, run: hl.Run) -> Any:
            return still(self.parameters())

        def train_batch(self, run: hl.Run, batch: Any) -> Any:
            lucky = run.clock.epoch == 0 and run.clock.step_in_epoch >= 100
            value = 0.0 if lucky else 10.0 - run.clock.epoch
            return self.net(batch[0]).mean() * 0 + value

    callbacks = [hl.EarlyStopping("train/loss", patience=2)]
    trainer = Trainer(max_duration="5ep", log_every="100st", callbacks=callbacks, folder=False)
    result = trainer.fit(Falls(), tiny_data(101))
    assert result.clock.epoch == 5, result.stop_reason
