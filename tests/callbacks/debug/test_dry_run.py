"""``DryRun``: everything runs once, mistakes are found, and nothing of it stays."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks import (
    Checkpointer,
    EarlyStopping,
    HistoryPlot,
    LambdaCallback,
    LoadWeights,
    QuantizationAwareTraining,
)
from hookline.callbacks.debug import DryRun, LimitBatches, OverfitBatches
from hookline.errors import ArgumentError, MetricError, SetupError
from hookline.loop import Trainer
from hookline.testing import Recorder, TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, state_of, train_loop

fit_long = partial(
    fit, train=tiny_data(6), val=tiny_data(5), test=tiny_data(4), max_duration="50ep", optimizer=torch.optim.Adam
)


@pytest.mark.parametrize("batches", [1, 3])
def test_every_stage_has_so_many_batches_in_one_epoch(batches: int) -> None:
    recorder = Recorder(fields=("stage",), only=("train_batch_end", "eval_batch_end", "train_epoch_end", "fit_end"))
    result = fit_long(DryRun(batches), recorder)
    counts = Counter((row["event"], row["stage"]) for row in recorder.rows)
    assert counts == {
        ("train_batch_end", "train"): batches,
        ("eval_batch_end", "val"): batches,
        ("eval_batch_end", "test"): batches,
        ("train_epoch_end", "train"): 1,
        ("fit_end", "train"): 1,
    }
    assert result.clock.epoch == 1


def test_evaluate_and_predict_are_limited_too() -> None:
    made = Trainer(callbacks=[DryRun(2)], folder=False)
    assert len(made.predict(TinyModel(), tiny_data(5))) == 16
    recorder = Recorder(only="eval_batch_end")
    made.evaluate(TinyModel(), {"a": tiny_data(5), "b": tiny_data(1)}, loss=CE, callbacks=[recorder])
    assert len(recorder.names) == 2 + 1


def test_weights_and_buffers_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    before = state_of(model)
    moved: list[bool] = []
    look = LambdaCallback(on_fit_end=lambda run: moved.append(not same_tensors(state_of(run.model), before)))
    fit_long(DryRun(), look, model=model)
    assert moved == [True]  # it was really trained
    assert same_tensors(state_of(model), before)


def test_an_optimizer_of_the_user_s_is_as_before() -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    CE(model(tiny_data(1)[0][0]), tiny_data(1)[0][1]).backward()
    optimizer.step()
    before = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    fit_long(DryRun(), model=model, optimizer=optimizer)
    after = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    fresh = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit_long(DryRun(), model=model, optimizer=fresh)
    assert not fresh.state


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_after_an_error_all_is_as_before_too(tmp_path: Path, error: BaseException) -> None:
    def fail(run: Any) -> None:
        if run.stage == "test":
            raise error

    model = TinyModel()
    before = state_of(model)
    with pytest.raises(type(error)):
        fit_long(DryRun(), Checkpointer(every="1st"), LambdaCallback(on_eval_end=fail), model=model, folder=tmp_path)
    assert same_tensors(state_of(model), before)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("background", [False, True])
def test_checkpoints_are_written_and_none_is_kept(tmp_path: Path, background: bool) -> None:
    recorder = Recorder(fields=("checkpoint",), only="checkpoint_saved")
    saver = Checkpointer(every="1st", monitor="val/loss", background=background)
    result = fit_long(DryRun(2), saver, recorder, folder=tmp_path)
    assert len(recorder.rows) >= 2
    assert not (tmp_path / "checkpoints").exists()
    assert result.best_checkpoint is None


def test_what_others_write_stays(tmp_path: Path) -> None:
    fit_long(DryRun(), HistoryPlot(), folder=tmp_path)
    assert (tmp_path / "metrics.jsonl").exists()
    assert (tmp_path / "plots" / "history.png").exists()


def test_max_duration_is_as_before_afterwards() -> None:
    durations: list[str] = []
    look = LambdaCallback(on_train_start=lambda run: durations.append(str(run.max_duration)))
    made, model = Trainer(callbacks=[look], max_duration="3ep", folder=False), TinyModel()
    arguments: dict[str, Any] = {"loss": CE, "optimizer": torch.optim.SGD}
    made.fit(model, tiny_data(6), callbacks=[DryRun()], **arguments)
    result = made.fit(model, tiny_data(6), **arguments)  # the real one, with what is left of the three epochs
    assert durations == ["1ep", "3ep"]
    assert result.clock.step == 1 + 2 * 6


def test_a_loop_without_an_end_has_none_afterwards() -> None:
    loop, _ = train_loop(DryRun(), train=tiny_data(6), max_duration=None)
    assert loop.run.clock.step == 1
    assert loop.run.max_duration is None


def test_the_random_state_and_a_real_run_after_it_are_those_of_a_run_alone() -> None:
    models = [TinyModel(dropout=0.3), TinyModel(dropout=0.3)]
    fit_long(DryRun(), model=models[0])
    for model in models:
        fit_long(model=model, max_duration="2ep")
    assert same_tensors(state_of(models[0]), state_of(models[1]))


# -- mistakes that it finds ----------------------------------------------------------------------


class BrokenAtTheEnd(hl.Callback):
    def on_fit_end(self, run: Any) -> None:
        raise NameError("reslt")


def test_a_mistake_after_the_last_epoch_is_found() -> None:
    with pytest.raises(NameError, match="reslt"):
        fit_long(DryRun(), BrokenAtTheEnd(), max_duration="1000ep")


def test_a_metric_that_nobody_logs_is_found() -> None:
    with pytest.raises(MetricError, match="val/accuracy"):
        fit_long(DryRun(), EarlyStopping("val/accuracy"))


def test_a_state_that_cannot_be_saved_is_found(tmp_path: Path) -> None:
    class Odd(hl.Callback):
        state = ("odd",)

        def __init__(self) -> None:
            self.odd: Any = 1

        def on_train_step_end(self, run: Any) -> None:
            self.odd = object()

    with pytest.raises(hl.HooklineError, match="odd"):
        fit_long(DryRun(), Odd(), Checkpointer(), folder=tmp_path)


# -- beside others -------------------------------------------------------------------------------


def test_it_is_the_last_to_touch_the_weights() -> None:
    model = TinyModel()
    before = state_of(model)
    for callbacks in (
        [DryRun(2), EarlyStopping(restore_best=True)],
        [EarlyStopping(restore_best=True), DryRun(2)],
        [OverfitBatches(4), LimitBatches(train=3, val=1), DryRun(2)],
        [DryRun(2), LimitBatches(train=3, val=1), OverfitBatches(4)],
    ):
        assert fit_long(*callbacks, model=model).clock.step == 2
        assert same_tensors(state_of(model), before)


class Shared(nn.Module):
    """One layer under two names, and one inside another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.again = self.first[0]
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.again(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [TinyModel, Shared])
def test_a_model_that_is_quantized_at_the_end_can_still_be_trained_afterwards(make: Any) -> None:
    model, alone = make(), make()
    before = state_of(model)
    assert fit_long(DryRun(), QuantizationAwareTraining(), model=model).clock.step == 1
    assert same_tensors(state_of(model), before)
    for one in (model, alone):  # the real run is that of a model which has seen no dry run
        fit_long(QuantizationAwareTraining(convert=False), model=one, max_duration="2ep")
    assert same_tensors(state_of(model), state_of(alone))


def test_after_an_error_with_quantization_the_weights_are_as_before_too() -> None:
    model = TinyModel()
    before = state_of(model)
    with pytest.raises(NameError, match="reslt"):
        fit_long(DryRun(), QuantizationAwareTraining(), BrokenAtTheEnd(), model=model)
    assert same_tensors(state_of(model), before)


def test_weights_that_were_loaded_for_it_stay_loaded(tmp_path: Path) -> None:
    torch.save({name: tensor + 1 for name, tensor in TinyModel().state_dict().items()}, tmp_path / "weights.pt")
    model = TinyModel()
    fit_long(DryRun(), LoadWeights(tmp_path / "weights.pt"), model=model)
    assert same_tensors(state_of(model), {name: tensor + 1 for name, tensor in TinyModel().state_dict().items()})


def test_a_second_fit_of_the_same_trainer_says_that_the_dry_run_is_over() -> None:
    made, model = Trainer(callbacks=[DryRun()], max_duration="3ep", folder=False), TinyModel()
    arguments: dict[str, Any] = {"loss": CE, "optimizer": torch.optim.SGD}
    made.fit(model, tiny_data(6), **arguments)
    with pytest.raises(
        SetupError, match="this trainer has trained 1: the dry run is over; make a new trainer without it"
    ):
        made.fit(model, tiny_data(6), **arguments)
    assert made.fit(TinyModel(), tiny_data(6), **arguments).clock.step == 1  # another model begins anew


def test_a_smaller_limit_beside_it_counts() -> None:
    assert fit_long(DryRun(4), LimitBatches(train=2)).clock.step == 2


def test_a_fraction_does_not_lengthen_a_dry_run() -> None:
    recorder = Recorder(fields=("stage",), only=("train_batch_end", "eval_batch_end"))
    fit_long(DryRun(1), LimitBatches(train=0.5, val=0.5, test=0.5), recorder)
    assert Counter(row["stage"] for row in recorder.rows) == {"train": 1, "val": 1, "test": 1}


def test_with_accumulation_the_one_window_is_short() -> None:
    assert fit_long(DryRun(1), accumulate=4).clock.step == 1


def test_an_own_loop_can_be_dry() -> None:
    loop, model = train_loop(DryRun(2), train=tiny_data(6), max_duration="9ep")
    assert (loop.run.clock.step, loop.run.clock.epoch) == (2, 1)
    assert same_tensors(state_of(model), state_of(TinyModel()))


def test_a_run_that_would_go_on_from_a_checkpoint_is_refused_and_left_alone(tmp_path: Path) -> None:
    fit_long(Checkpointer(), max_duration="1ep", folder=tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(SetupError, match="DryRun starts from scratch, but this run has a checkpoint to resume from"):
        fit_long(DryRun(), Checkpointer(keep_last=1), folder=tmp_path, resume="auto")
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.suffix not in {".json", ".lock"}) == [
        path for path in before if not path.endswith((".json", ".lock"))
    ]


def test_resume_auto_with_nothing_to_go_on_from_is_fine(tmp_path: Path) -> None:
    assert fit_long(DryRun(), Checkpointer(), folder=tmp_path, resume="auto").clock.step == 1


def test_it_says_that_all_went_through(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hookline"):
        fit_long(DryRun(2))
    assert "the dry run went through: 2 batches of each stage" in caplog.text


@pytest.mark.parametrize("batches", [0, -1, 1.0, True, "2"])
def test_bad_arguments_are_refused_at_once(batches: Any) -> None:
    with pytest.raises(ArgumentError, match=r"DryRun\(batches.*\): must be"):
        DryRun(batches)
