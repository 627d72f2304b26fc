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
from tests.support import CE, fit


def still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


class Numbered(hl.Callback):
    """Logs the number of each step, so that a mean says which steps are in it."""

    def on_train_step_end(self, run: hl.Run) -> None:
        run.log({"number": float(run.clock.step)})
        run.log({"largest": float(run.clock.step)}, reduce="max")
        run.log({"steps": 1.0}, reduce="sum")


def trained(*callbacks: Any, batches: int, log_every: str, **options: Any) -> hl.History:
    """The history of a run in which the weights stay."""
    options = {"max_duration": "2ep", "optimizer": still, **options}
    return fit(Numbered(), *callbacks, train=tiny_data(batches), log_every=log_every, **options).history


def rows(history: hl.History, name: str = "train/number") -> dict[int, float]:
    return dict(zip(history.steps(name), history[name], strict=True))


def mean(first: int, last: int) -> float:
    return (first + last) / 2


def test_a_short_rest_of_an_epoch_is_averaged_with_the_interval_before_it() -> None:
    """One that monitors train/loss would else stop by the mean of a batch or two."""
    found = trained(batches=13, log_every="10st")
    assert rows(found) == {10: mean(1, 10), 13: mean(1, 13), 20: mean(14, 20), 26: mean(21, 26)}
    assert rows(found, "train/number_epoch") == {13: mean(1, 13), 26: mean(14, 26)}


def test_what_was_not_logged_in_the_interval_before_is_of_the_rest_alone() -> None:
    class Rarely(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step <= 10 or run.clock.step > 30:
                run.log({"rare": 100.0 if run.clock.step <= 10 else 0.0})

    found = trained(Rarely(), batches=33, log_every="10st", max_duration="1ep")
    assert rows(found, "train/rare") == {10: 100.0, 33: 0.0}


def test_intervals_in_another_unit_begin_anew_after_a_resume(tmp_path: Path) -> None:
    """A number of samples was taken for a number of steps, and no row was written until so many steps had come."""

    def fails(run: hl.Run) -> None:
        if run.clock.step == 20:
            raise ZeroDivisionError

    options: Any = {"batches": 80, "max_duration": "40st", "folder": tmp_path, "resume": "auto"}
    saver = hl.Checkpointer("10st")
    with pytest.raises(ZeroDivisionError):
        trained(saver, hl.LambdaCallback(on_checkpoint_saved=fails), log_every="40sp", **options)
    found = trained(saver, log_every="5st", **options)
    assert [step for step in found.steps("train/number") if step > 20] == [25, 30, 35, 40]


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
    found = trained(batches=13, log_every="10st")
    assert rows(found, "train/steps") == {10: 10.0, 13: 3.0, 20: 7.0, 26: 6.0}
    assert rows(found, "train/largest") == {step: float(step) for step in (10, 13, 20, 26)}


def test_a_rest_of_half_an_interval_has_a_row_of_its_own() -> None:
    assert rows(trained(batches=15, log_every="10st")) == {
        10: mean(1, 10),
        15: mean(11, 15),
        20: mean(16, 20),
        30: mean(21, 30),
    }


def test_an_epoch_that_is_shorter_than_an_interval_is_one_row() -> None:
    """A multiple of log_every just after its start would be a row of one step."""
    assert rows(trained(batches=9, log_every="10st", max_duration="3ep")) == {
        9: mean(1, 9),
        18: mean(10, 18),
        27: mean(19, 27),
    }


def test_the_last_row_of_a_run_that_ends_inside_an_epoch_is_no_short_one() -> None:
    assert rows(trained(batches=100, log_every="10st", max_duration="22st")) == {
        10: mean(1, 10),
        20: mean(11, 20),
        22: mean(11, 22),
    }


@given(batches=st.integers(1, 24), every=st.integers(1, 12), epochs=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_each_row_is_of_half_an_interval_or_of_all_that_its_epoch_has(batches: int, every: int, epochs: int) -> None:
    found = trained(batches=batches, log_every=f"{every}st", max_duration=f"{epochs}ep")
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

    def run(folder: str, *callbacks: Any) -> dict[int, float]:
        options: Any = {"folder": tmp_path / folder, "resume": "auto"}
        return rows(trained(hl.Checkpointer(f"{at}st"), *callbacks, batches=13, log_every="10st", **options))

    class Leaves(hl.Callback):
        def on_checkpoint_saved(self, run: hl.Run) -> None:
            raise ZeroDivisionError

    whole = run("whole")
    with pytest.raises(ZeroDivisionError):
        run("left", Leaves())
    assert run("left") == whole


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
    result = fit(*callbacks, model=Falls(), train=tiny_data(101), max_duration="5ep", log_every="100st")
    assert result.clock.epoch == 5, result.stop_reason
