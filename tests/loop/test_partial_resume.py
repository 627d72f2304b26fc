"""``hl.Resume(skip=…)``: the run continues at the step of the checkpoint, without the parts that it names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import hookline as hl
from hookline.errors import ArgumentError, CheckpointMismatchError
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, json_lines, same_tensors, weights_of

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
PARTS = ("optimizer", "schedulers", "data", "callbacks", "random")


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


fit_halving = partial(
    fit, train=TRAIN, val=VAL, max_duration="3ep", optimizer=adam, scheduler=lambda o: StepLR(o, 2, 0.5)
)


class Look(hl.Callback):
    """What the run has when its first step after the resume begins."""

    def on_train_batch_start(self, run: hl.Run) -> None:
        if not hasattr(self, "batch"):
            self.batch, self.random, self.step = run.batch[0], torch.get_rng_state(), run.clock.step
            self.rate = run.optimizers[next(iter(run.optimizers))].param_groups[0]["lr"]
            self.moments = len(next(iter(run.optimizers.values())).state)
            self.moves = [scheduler.scheduler.last_epoch for scheduler in run.schedulers]
            self.weights = {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A run with a checkpoint inside its second epoch, after step 6."""
    early = hl.EarlyStopping("val/loss", patience=5)
    with pytest.raises(RuntimeError, match="planted"):
        fit_halving(hl.Checkpointer("6st"), early, crash_at(8), folder=tmp_path / "run")
    return tmp_path / "run"


def resumed(folder: Path, skip: Any, *callbacks: Any, **options: Any) -> Look:
    look = Look()
    early = hl.EarlyStopping("val/loss", patience=5)
    fit_halving(look, early, *callbacks, folder=folder, resume=hl.Resume("auto", skip=skip), **options)
    return look


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_skipped_starts_from_scratch_and_the_others_continue(
    tmp_path: Path, crashed: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = Look()
    fit_halving(start, folder=tmp_path / "start", max_duration="1st")
    look = resumed(crashed, part)
    assert (look.step, same_tensors(look.weights, start.weights)) == (6, False)
    assert (look.moments == 0) is (part == "optimizer")
    assert look.moves == [0 if part == "schedulers" else 6]
    assert look.rate == (0.1 if part == "schedulers" else 0.1 * 0.5**3)
    assert torch.equal(look.batch, TRAIN[0 if part == "data" else 2][0])
    shown = (
        part if part != "callbacks" else f"{part} (with their schedulers, frozen parameters and modules in eval mode)"
    )
    assert f"epoch 1, step 6; skipped: {shown}" in caplog.text
    note = next(row for row in json_lines(crashed / "events.jsonl") if row["name"] == "resume")
    assert note["text"] == f"skipped: {shown}"


def test_callbacks_that_are_skipped_have_no_saved_state(crashed: Path) -> None:
    seen: dict[str, Any] = {}

    class Best(hl.Callback):
        def on_train_start(self, run: hl.Run) -> None:
            early = next(callback for callback in run.callbacks if isinstance(callback, hl.EarlyStopping))
            seen["best"] = early.best

    resumed(crashed, "callbacks", Best(), max_duration="7st")
    assert seen == {"best": None}


def test_random_states_that_are_skipped_are_those_of_the_start(tmp_path: Path) -> None:
    run = partial(fit_halving, folder=tmp_path, seed=3)
    with pytest.raises(RuntimeError, match="planted"):
        run(hl.Checkpointer("6st"), crash_at(8), model=TinyModel(dropout=0.2))
    looks = {skip: Look() for skip in ((), ("random",), ("random", "data"))}
    for skip, look in looks.items():
        run(look, model=TinyModel(dropout=0.2), max_duration="7st", resume=hl.Resume("auto", skip=skip))
    assert torch.equal(looks["random",].random, looks["random", "data"].random)
    assert not torch.equal(looks["random",].random, looks[()].random)


def test_another_optimizer_continues_if_the_saved_one_is_skipped(crashed: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match="optimizers"):
        resumed(crashed, (), optimizer=torch.optim.SGD)
    look = resumed(crashed, ("optimizer", "schedulers"), optimizer=torch.optim.SGD)
    assert (look.step, look.moments, look.moves) == (6, 0, [0])


def test_a_schedule_of_a_callback_starts_again_with_its_callback(tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> Any:
        schedule = hl.LRSchedule("linear", warmup="2st")
        return fit_halving(schedule, *callbacks, folder=tmp_path, scheduler=None, **options)

    with pytest.raises(RuntimeError, match="planted"):
        run(hl.Checkpointer("6st"), crash_at(8))
    look = Look()
    run(look, resume=hl.Resume("auto", skip=["callbacks"]))
    assert look.moves == [0]
    assert look.rate < 0.1


def test_nothing_skipped_is_the_resume_of_always(tmp_path: Path, crashed: Path) -> None:
    whole = fit_halving(folder=tmp_path / "whole")
    again = fit_halving(hl.EarlyStopping("val/loss", patience=5), folder=crashed, resume=hl.Resume("auto", skip=()))
    assert same_tensors(weights_of(again.model), weights_of(whole.model))


@pytest.mark.parametrize(
    ("skip", "words"),
    [
        ("optimizers", r"Resume\(skip='optimizers'\): a checkpoint has no such part\. Did you mean 'optimizer'\?"),
        (("data", "clock"), r"Resume\(skip='clock'\): .* Use one or more of optimizer, schedulers, data, callbacks"),
    ],
)
def test_an_unknown_part_is_named(skip: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        hl.Resume("auto", skip=skip)
