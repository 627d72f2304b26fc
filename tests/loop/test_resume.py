"""What a run goes on from, what it says about it, and what is there again afterwards."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hookline as hl
from hookline.checkpoint import Store
from hookline.checkpoint.compare import compare
from hookline.errors import (
    ArgumentError,
    CheckpointCorruptError,
    CheckpointLockedError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    SetupError,
    StateError,
)
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, run_script, start_script, tiny_data
from tests.support import fit, json_lines, literal, same_tensors, sgd, state_of
from tests.support.inside import change_saved_state, random_states, set_random_states

BATCHES = 4


class LeftError(Exception):
    """How a run is left here."""


def leave(step: int, event: str = "train_step_start") -> hl.Callback:
    def hook(run: Any) -> None:
        if run.clock.step == step:
            raise LeftError

    return hl.LambdaCallback(name="leave", **{f"on_{event}": hook})


momentum = partial(sgd, momentum=0.9)


class Ran:
    """A run that has ended, with what it was made of."""

    def __init__(self, model: nn.Module, folder: Any, result: Any) -> None:
        self.model, self.folder, self.result, self.weights = model, folder, result, state_of(model)


def saved_fit(
    folder: Path | str | bool | None,
    *callbacks: Any,
    model: nn.Module | None = None,
    every: str = "1st",
    **options: Any,
) -> Ran:
    """Ten steps in epochs of four, each saved, unless the test says otherwise."""
    model = TinyModel(dropout=0.2) if model is None else model
    options = {"max_duration": "10st", "log_every": "2st", "seed": 3, "optimizer": momentum, **options}
    saver = hl.Checkpointer(every=every, keep_last=None)
    return Ran(model, folder, fit(*callbacks, saver, model=model, folder=folder, **options))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The ten steps without an end between them. The folder must stay as it is."""
    return saved_fit(tmp_path_factory.mktemp("whole") / "run")


def fit_and_leave(folder: Path, *callbacks: Any, step: int = 6, **options: Any) -> None:
    with pytest.raises(LeftError):
        saved_fit(folder, *callbacks, leave(step), **options)


def store_of(folder: Path) -> Store:
    return Store(folder / "checkpoints")


def at_step(folder: Path, step: int) -> Path:
    return next(found.path for found in store_of(folder).checkpoints() if found.about.step == step)


def flip(path: Path) -> None:
    """Damage that only a hash can find."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="hookline")
    return lambda: caplog.text


# -- what it goes on from --------------------------------------------------------------------------


def test_auto_begins_where_there_is_nothing_and_goes_on_where_there_is(whole: Ran, tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", resume="auto")
    again = saved_fit(tmp_path / "run", resume="auto")
    assert same_tensors(again.weights, whole.weights)
    assert again.result.history.steps("train/loss") == whole.result.history.steps("train/loss")


@pytest.mark.parametrize("folder", [None, False])
def test_auto_without_a_folder_is_refused_when_the_trainer_is_made(folder: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"Trainer\(resume='auto'\): reads the folder of the run, and none is given\. Add folder='runs/mine'\.",
    ):
        Trainer(max_duration="1ep", folder=folder, resume="auto")


def test_auto_begins_anew_with_its_metrics_after_a_kill_before_the_first_save(
    whole: Ran, tmp_path: Path, said: Callable[[], str]
) -> None:
    fit_and_leave(tmp_path / "run", every="9st")
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size
    again = saved_fit(tmp_path / "run", resume="auto")
    assert "the run starts from scratch, and so do its metrics" in said()
    assert rows_of(tmp_path / "run") == rows_of(whole.folder)
    assert same_tensors(again.weights, whole.weights)


def rows_of(folder: Path) -> list[Any]:
    return [(row["name"], row["step"], row["value"]) for row in json_lines(folder / "metrics.jsonl") if "value" in row]


@pytest.mark.parametrize("what", ["checkpoint", "checkpoints", "run"])
def test_a_path_is_that_of_a_checkpoint_or_of_a_folder_of_them_or_of_a_run(
    whole: Ran, tmp_path: Path, what: str
) -> None:
    fit_and_leave(tmp_path / "left")
    path = {
        "checkpoint": at_step(tmp_path / "left", 6),
        "checkpoints": tmp_path / "left" / "checkpoints",
        "run": tmp_path / "left",
    }[what]
    again = saved_fit(tmp_path / "new", resume=str(path))
    assert again.result.clock.step == 10
    assert same_tensors(again.weights, whole.weights)
    assert rows_of(tmp_path / "new") == rows_of(whole.folder)  # with those from before the checkpoint


def test_a_path_that_leads_to_the_own_folder_over_a_link_is_known_as_the_own(tmp_path: Path) -> None:
    whole = saved_fit(tmp_path / "run")
    os.symlink(tmp_path / "run", tmp_path / "link")
    around = tmp_path / "run" / ".." / "run" / "checkpoints" / "step-00000006"
    for generation, (folder, path) in enumerate(
        [("link", at_step(tmp_path / "run", 6)), ("run", around), ("run", tmp_path / "link")], start=1
    ):
        again = saved_fit(tmp_path / folder, resume=path)
        assert same_tensors(again.weights, whole.weights)
        assert rows_of(tmp_path / "run") == rows_of(tmp_path / "run")
        latest = store_of(tmp_path / "run").latest()
        assert latest is not None
        assert latest.about.generation == min(generation, 2)  # the last of them was finished, and is the newest


@pytest.mark.parametrize("resume", ["auto", "run", "disk"])
def test_checkpoints_may_be_a_link_to_another_disk(whole: Ran, tmp_path: Path, resume: str) -> None:
    for folder in ("disk", "run"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    fit_and_leave(tmp_path / "run")
    again = saved_fit(tmp_path / "run", resume="auto" if resume == "auto" else tmp_path / resume)
    assert same_tensors(again.weights, whole.weights)
    assert rows_of(tmp_path / "run") == rows_of(whole.folder)
    saved_fit(tmp_path / "new", resume=tmp_path / "run", extend="2st")
    assert rows_of(tmp_path / "new")[: len(rows_of(whole.folder))] == rows_of(whole.folder)


def test_two_runs_do_not_save_into_one_folder_over_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "checkpoints").symlink_to(tmp_path / "disk")

    def second(run: Any) -> None:
        saved_fit(tmp_path / "b")

    with pytest.raises(CheckpointLockedError, match="disk is in use"):
        saved_fit(tmp_path / "a", hl.LambdaCallback(on_train_start=second))


def test_a_run_that_writes_nothing_goes_on_from_a_path(whole: Ran, tmp_path: Path) -> None:
    model = TinyModel(dropout=0.2, seed=8)
    trainer = Trainer(max_duration="10st", folder=False, resume=at_step(whole.folder, 6), device="cpu")
    trainer.fit(model, tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert same_tensors(model.state_dict(), whole.weights)


def test_a_path_where_there_is_nothing_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(resume="):
        Trainer(max_duration="1ep", folder=tmp_path / "run", resume=tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint in"):
        saved_fit(tmp_path / "run", resume=tmp_path / "empty")


@pytest.mark.parametrize("given", ["", 3, True, ["auto"]])
def test_what_is_no_way_to_resume_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(resume.*\): must be"):
        Trainer(max_duration="1ep", folder=tmp_path, resume=given)


def test_a_checkpoint_of_weights_alone_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    trainer = Trainer(
        max_duration="4st", folder=tmp_path / "run", device="cpu", callbacks=[hl.Checkpointer(weights_only=True)]
    )
    trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    path = at_step(tmp_path / "run", 4)
    with pytest.raises(CheckpointMismatchError, match=r"holds weights only.*hl\.LoadWeights\(path\)"):
        saved_fit(tmp_path / "new", resume=path)
    began = saved_fit(tmp_path / "other", hl.LoadWeights(path), max_duration="1st")
    assert began.result.clock.step == 1


# -- damage ------------------------------------------------------------------------------------------


def damage_the_newest(folder: Path, how: str) -> Path:
    path = at_step(folder, 6)
    if how == "a bit":
        flip(path / "model.safetensors")
    elif how == "a file is gone":
        (path / "state.json").unlink()
    else:
        (path / "manifest.json").write_text("{")
    return path


@pytest.mark.parametrize("how", ["a bit", "a file is gone", "the manifest"])
def test_a_damaged_newest_one_is_passed_over_with_its_name_and_an_event(whole: Ran, tmp_path: Path, how: str) -> None:
    fit_and_leave(tmp_path / "run")
    bad = damage_the_newest(tmp_path / "run", how)
    seen: list[Any] = []
    listener = hl.LambdaCallback(
        on_checkpoint_rejected=lambda run: seen.append(("rejected", run.checkpoint)),
        on_checkpoint_loaded=lambda run: seen.append(("loaded", run.checkpoint)),
    )
    with pytest.warns(hl.HooklineWarning, match=r"damaged checkpoints: step-00000006 \(.*Using step-00000005\."):
        again = saved_fit(tmp_path / "run", listener, resume="auto")
    assert seen == [("rejected", bad), ("loaded", at_step(tmp_path / "run", 5))]
    assert same_tensors(again.weights, whole.weights)


@pytest.mark.parametrize("how", ["a bit", "a file is gone", "the manifest"])
def test_strict_refuses_where_a_damaged_one_would_be_passed_over(tmp_path: Path, how: str) -> None:
    fit_and_leave(tmp_path / "run")
    damage_the_newest(tmp_path / "run", how)
    with pytest.raises(CheckpointCorruptError, match=r"strict=True: step-00000006 \("):
        saved_fit(tmp_path / "run", resume=hl.Resume("auto", strict=True))


def test_a_damaged_one_beside_a_checkpoint_that_was_named_is_no_news(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")
    damage_the_newest(tmp_path / "run", "the manifest")
    seen: list[Any] = []
    listener = hl.LambdaCallback(on_checkpoint_rejected=lambda run: seen.append(run.checkpoint))
    saved_fit(tmp_path / "run", listener, resume=at_step(tmp_path / "run", 3))
    assert seen == []


def test_a_damaged_one_that_was_named_is_an_error(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")
    path = damage_the_newest(tmp_path / "run", "a bit")
    with pytest.raises(CheckpointCorruptError, match=r"step-00000006/model\.safetensors"):
        saved_fit(tmp_path / "run", resume=path)


def test_where_all_are_damaged_the_run_does_not_begin_anew_in_silence(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", every="3st")
    for checkpoint in store_of(tmp_path / "run").checkpoints():
        flip(checkpoint.path / "model.safetensors")
    with pytest.raises(CheckpointCorruptError, match="no valid checkpoint; damaged"):
        saved_fit(tmp_path / "run", resume="auto")


# -- what the console shows --------------------------------------------------------------------------


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What Python shows of Hookline's logs where nobody has set up logging; the records are forgotten."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def test_a_resume_is_shown_in_one_line_and_a_beginning_in_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit_and_leave(tmp_path / "run", resume="auto")
    assert shown(caplog) == []
    saved_fit(tmp_path / "run", resume="auto")
    assert shown(caplog) == [f"resumed from {at_step(tmp_path / 'run', 6)}: epoch 1, step 6"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_signal_that_ends_a_run_says_what_it_has_saved_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, saves: bool
) -> None:
    signalled = hl.LambdaCallback(on_train_step_end=lambda run: signal.raise_signal(signal.SIGTERM))
    trainer = Trainer(max_duration="9st", folder=tmp_path / "run" if saves else False, callbacks=[signalled])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    saved = f"saved {at_step(tmp_path / 'run', 1)}" if saves else "nothing was saved"
    assert shown(caplog) == [f"SIGTERM: {saved}; the run exits with code 143"]
    assert caught.value.checkpoint == (at_step(tmp_path / "run", 1) if saves else None)


def test_an_epoch_whose_last_step_failed_in_a_hook_ends_once_after_the_resume(tmp_path: Path) -> None:
    ends: list[str] = []
    heard = hl.LambdaCallback(
        on_train_epoch_end=lambda run: ends.append("train_epoch_end"), on_epoch_end=lambda run: ends.append("epoch_end")
    )
    saver = hl.Checkpointer(on_exception=True, at_end=False)
    with pytest.raises(LeftError):
        fit(leave(BATCHES, "train_step_end"), saver, folder=tmp_path / "run", max_duration="2ep")
    saved = at_step(tmp_path / "run", BATCHES)
    with pytest.warns(hl.errors.HooklineWarning, match="after an error inside a step"):
        result = fit(heard, folder=tmp_path / "again", max_duration="2ep", resume=saved)
    assert ends == ["train_epoch_end", "epoch_end"] * 2
    assert (result.clock.epoch, result.clock.step) == (2, 2 * BATCHES)


@pytest.mark.parametrize("left_at", [2, 6])
def test_batches_of_an_iterator_whose_step_a_signal_has_dropped_are_trained_on_after_the_resume(
    tmp_path: Path, left_at: int
) -> None:
    def batches(signal_before: int = -1) -> Iterator[Any]:
        for index, batch in enumerate(tiny_data(12)):
            if index == signal_before:
                signal.raise_signal(signal.SIGTERM)
            yield batch

    def train(data: Iterator[Any], folder: Path) -> Ran:
        options: dict[str, Any] = {"max_duration": "3st", "accumulate": 4, "every": "9st", "resume": "auto"}
        return saved_fit(folder, model=TinyModel(), train=data, **options)

    whole = train(batches(), tmp_path / "whole")
    with pytest.raises(hl.Preempted):
        train(batches(left_at), tmp_path / "run")  # In a step of four batches, before its third.
    again = train(batches(), tmp_path / "run")
    assert again.result.clock.batch == whole.result.clock.batch == 12
    assert same_tensors(again.weights, whole.weights)


@pytest.mark.parametrize("event", ["on_train_step_end", "on_eval_batch_end"])
def test_ctrl_c_says_once_what_it_has_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture, event: str) -> None:
    pressed = hl.LambdaCallback(**{event: lambda run: run.clock.step == 2 and signal.raise_signal(signal.SIGINT)})
    callbacks = [pressed, hl.Checkpointer()]
    trainer = Trainer(max_duration="9st", folder=tmp_path / "run", callbacks=callbacks, eval_every="1st")
    data = tiny_data(BATCHES)
    result = trainer.fit(TinyModel(), data, data, loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert result.interrupted
    said = [line for line in shown(caplog) if "saved" in line]
    assert said == [f"keyboard interrupt: saved {at_step(tmp_path / 'run', 2)}"]


@pytest.mark.parametrize("savers", [[hl.Checkpointer], []])
def test_a_signal_in_the_last_hook_says_what_was_saved_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, savers: list[Any]
) -> None:
    signalled = hl.LambdaCallback(on_fit_end=lambda run: signal.raise_signal(signal.SIGTERM))
    trainer = Trainer(max_duration="3st", folder=tmp_path / "run", callbacks=[signalled, *(make() for make in savers)])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert caught.value.checkpoint == at_step(tmp_path / "run", 3)
    assert shown(caplog) == [f"SIGTERM: saved {at_step(tmp_path / 'run', 3)}; the run exits with code 143"]


def sigterm(run: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("hook", ["on_interrupt", "on_train_end", "on_fit_end"])
def test_a_signal_in_the_last_hooks_after_ctrl_c_saves_without_a_checkpointer_too(tmp_path: Path, hook: str) -> None:
    def press(run: Any) -> None:
        if run.clock.step == 2:
            signal.raise_signal(signal.SIGINT)

    signalled = hl.LambdaCallback(on_train_step_end=press, **{hook: sigterm})
    trainer = Trainer(max_duration="9st", folder=tmp_path / "run", callbacks=[signalled])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert caught.value.checkpoint == at_step(tmp_path / "run", 2)
    again = Trainer(max_duration="3st", folder=tmp_path / "run", resume="auto")
    result = again.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert result.clock.step == 3


def test_a_state_that_cannot_be_saved_does_not_take_the_place_of_the_code_of_a_signal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler starts again what ended with 143, and nothing that ended with an error."""

    class Odd(hl.Callback):
        state = ("function",)

        def __init__(self) -> None:
            self.function = lambda: 0

        def on_train_step_end(self, run: Any) -> None:
            if run.clock.step == 2:
                signal.raise_signal(signal.SIGINT)

        def on_train_end(self, run: Any) -> None:
            sigterm(run)

    trainer = Trainer(max_duration="9st", folder=tmp_path / "run", callbacks=[Odd()])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert (caught.value.code, caught.value.checkpoint) == (143, None)
    assert "not saved: callbacks/" in caplog.text


def test_a_second_signal_after_the_save_does_not_make_it_unsaved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at_three = hl.LambdaCallback(
        on_train_step_end=lambda run: sigterm(run) if run.clock.step == 3 else None, on_checkpoint_saved=sigterm
    )
    trainer = Trainer(max_duration="9st", folder=tmp_path / "run", callbacks=[at_three])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert caught.value.checkpoint == at_step(tmp_path / "run", 3)
    assert shown(caplog)[-1] == f"SIGTERM: saved {at_step(tmp_path / 'run', 3)}; the run exits with code 143"


def test_a_second_signal_before_the_save_says_since_when_nothing_was_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two who save: the newest that can be gone on from, and no weights alone."""
    twice = hl.LambdaCallback(on_train_step_end=lambda run: (sigterm(run), sigterm(run)) if run.clock.step == 5 else 0)
    weights = hl.Checkpointer(every="1st", weights_only=True, folder="weights")
    trainer = Trainer(
        max_duration="9st", folder=tmp_path / "run", callbacks=[weights, twice, hl.Checkpointer(every="2st")]
    )
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert caught.value.checkpoint is None
    since = at_step(tmp_path / "run", 4)
    assert shown(caplog)[-1] == f"SIGTERM: nothing was saved since {since}; the run exits with code 143"


def test_a_signal_in_teardown_is_said_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    last = hl.LambdaCallback(on_teardown=sigterm)
    trainer = Trainer(max_duration="3st", folder=tmp_path / "run", callbacks=[last, hl.Checkpointer()])
    with pytest.raises(hl.Preempted) as caught:
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert caught.value.checkpoint == at_step(tmp_path / "run", 3)
    assert shown(caplog) == [f"SIGTERM: saved {at_step(tmp_path / 'run', 3)}; the run exits with code 143"]


# -- a finished run ----------------------------------------------------------------------------------


def test_a_run_that_is_finished_says_so_and_ends_well_however_often_it_is_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookline")
    found, said = [], []
    for _ in range(3):
        caplog.clear()
        steps: list[int] = []
        note = hl.LambdaCallback(on_train_step_end=lambda run, steps=steps: steps.append(run.clock.step))
        result = saved_fit(tmp_path / "run", note, max_duration="2ep", resume="auto").result
        found.append((steps, result.clock.step, result.stop_reason, result.metrics["train/loss_epoch"]))
        said.append(
            "this run is finished (max_duration (2ep) reached); to train longer: fit(…, extend='2ep')" in caplog.text
        )
    loss = found[0][3]
    reached = (8, "max_duration (2ep) reached", loss)
    assert found == [([1, 2, 3, 4, 5, 6, 7, 8], *reached), ([], *reached), ([], *reached)]
    assert said == [False, True, True]


def test_a_finished_run_sends_no_training_events_and_saves_nothing_again(tmp_path: Path) -> None:
    first = saved_fit(tmp_path / "run", val=tiny_data(2), max_duration="2ep")
    before = sorted((tmp_path / "run" / "checkpoints").rglob("*"))
    recorder = Recorder()
    again = saved_fit(tmp_path / "run", recorder, val=tiny_data(2), max_duration="2ep", resume="auto")
    assert recorder.seen == literal("setup checkpoint_loaded model_ready fit_start fit_end teardown")
    assert sorted((tmp_path / "run" / "checkpoints").rglob("*")) == before
    assert again.result.stop_reason == first.result.stop_reason
    assert again.result.metrics == first.result.metrics
    assert {name: again.result.history[name] for name in again.result.history} == {
        name: first.result.history[name] for name in first.result.history
    }
    assert same_tensors(again.weights, first.weights)


@pytest.mark.parametrize("folder", ["run", "new"])
def test_extend_goes_on_with_a_finished_run_as_if_it_had_been_longer(tmp_path: Path, folder: str) -> None:
    val = tiny_data(2)
    longer = saved_fit(tmp_path / "longer", val=val, max_duration="4ep")
    saved_fit(tmp_path / "run", val=val, max_duration="2ep")
    resume = "auto" if folder == "run" else tmp_path / "run"
    again = saved_fit(tmp_path / folder, val=val, max_duration="2ep", resume=resume, extend="2ep")
    assert again.result.clock.epoch == 4
    assert same_tensors(again.weights, longer.weights)
    assert rows_of(tmp_path / folder) == rows_of(tmp_path / "longer")
    ended = saved_fit(tmp_path / folder, val=val, max_duration="2ep", resume="auto")
    assert (ended.result.clock.epoch, ended.result.stop_reason) == (4, "max_duration (4ep) reached")


def test_extend_goes_on_with_a_run_that_was_stopped_early(tmp_path: Path) -> None:
    stops: list[int] = []

    def stopper() -> hl.Callback:
        return hl.LambdaCallback(
            on_train_step_end=lambda run: run.stop("enough") if run.clock.step in (3, 9) else None,
            on_stop=lambda run: stops.append(run.clock.step),
        )

    whole = saved_fit(tmp_path / "whole", max_duration="9st")
    assert saved_fit(tmp_path / "run", stopper()).result.stop_reason == "enough"
    again = saved_fit(tmp_path / "run", stopper(), resume="auto")
    assert (again.result.stop_reason, again.result.clock.step) == ("enough", 3)
    more = saved_fit(tmp_path / "run", stopper(), resume="auto", extend="20st")
    assert (more.result.stop_reason, more.result.clock.step) == ("enough", 9)
    assert stops == [3, 9]
    assert same_tensors(more.weights, whole.weights)


def test_a_larger_max_duration_alone_does_not_lengthen_a_finished_run(tmp_path: Path, said: Callable[[], str]) -> None:
    saved_fit(tmp_path / "run", max_duration="4st")
    again = saved_fit(tmp_path / "run", max_duration="8st", resume="auto")
    assert again.result.clock.step == 4
    assert "this run is finished (max_duration (4st) reached), and max_duration='8st' does not make it longer" in said()


def own_loop(folder: Path, *callbacks: Any, resume: Any = None, **options: Any) -> tuple[Loop, dict[str, Any]]:
    model = TinyModel(dropout=0.2)
    options = {"max_duration": "4st", "device": "cpu", "seed": 3, **options}
    callbacks = (*callbacks, hl.Checkpointer(every="2st", keep_last=None))
    with Loop(
        model, momentum(model.parameters()), callbacks=callbacks, folder=folder, resume=resume, **options
    ) as loop:
        for x, y in loop.batches(tiny_data(BATCHES)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
    return loop, {name: value.clone() for name, value in model.state_dict().items()}


def test_a_finished_own_loop_is_told_what_makes_it_longer_and_that_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no ``extend=``, which belongs to ``fit``."""
    _, longer = own_loop(tmp_path / "longer", max_duration="9st")
    own_loop(tmp_path / "run")
    own_loop(tmp_path / "run", resume="auto")
    assert shown(caplog) == [
        "this run is finished (max_duration (4st) reached); to train longer: give a larger max_duration"
    ]
    more, weights = own_loop(tmp_path / "run", resume="auto", max_duration="9st")
    assert (more.run.clock.step, more.result().stop_reason) == (9, "max_duration (9st) reached")
    assert same_tensors(weights, longer)
    assert shown(caplog) == [f"resumed from {at_step(tmp_path / 'run', 4)}: epoch 1, step 4"]
    again, _ = own_loop(tmp_path / "run", resume="auto", max_duration="9st")
    assert (again.run.clock.step, again.result().stop_reason) == (9, "max_duration (9st) reached")
    assert shown(caplog)[0].startswith("this run is finished (max_duration (9st) reached)")


def test_an_own_loop_that_was_stopped_goes_on_with_another_max_duration_and_only_then(tmp_path: Path) -> None:
    def stopper() -> hl.Callback:
        return hl.LambdaCallback(on_train_step_end=lambda run: run.stop("enough") if run.clock.step == 3 else None)

    _, whole = own_loop(tmp_path / "whole", max_duration="9st")
    own_loop(tmp_path / "run", stopper(), max_duration="6st")
    again, _ = own_loop(tmp_path / "run", stopper(), max_duration="6st", resume="auto")
    assert (again.run.clock.step, again.result().stop_reason) == (3, "enough")
    more, weights = own_loop(tmp_path / "run", stopper(), max_duration="9st", resume="auto")
    assert (more.run.clock.step, more.result().stop_reason) == (9, "max_duration (9st) reached")
    assert same_tensors(weights, whole)


def test_the_same_own_loop_started_again_does_not_go_on_where_a_hook_has_shortened_it(tmp_path: Path) -> None:
    def shorter(run: Any) -> None:
        if run.clock.step == 2:
            run.max_duration = "3st"

    for _ in range(3):
        loop, _ = own_loop(tmp_path, hl.LambdaCallback(on_train_step_end=shorter), max_duration="6st", resume="auto")
        assert (loop.run.clock.step, loop.result().stop_reason) == (3, "max_duration (3st) reached")


@pytest.mark.parametrize("event", ["on_setup", "on_fit_start"])
def test_the_same_own_loop_started_again_does_not_go_on_where_a_hook_has_lengthened_and_stopped_it(
    tmp_path: Path, event: str
) -> None:
    def longer(run: Any) -> None:
        run.max_duration = "50st"

    def stop(run: Any) -> None:
        if run.clock.step == 3:
            run.stop("enough")

    for _ in range(3):
        both = hl.LambdaCallback(**{event: longer, "on_train_step_end": stop})  # type: ignore[arg-type]
        loop, _ = own_loop(tmp_path, both, max_duration="6st", resume="auto")
        assert (loop.run.clock.step, loop.result().stop_reason) == (3, "enough")


@pytest.mark.parametrize(
    ("before", "given", "step"), [("6st", "5st", 3), ("6st", "9st", 9), ("6st", "1ep", 4), ("2m", "120s", 3)]
)
def test_a_stopped_own_loop_goes_on_only_with_more_than_it_was_given(
    tmp_path: Path, before: str, given: str, step: int
) -> None:
    stop = hl.LambdaCallback(on_train_step_end=lambda run: run.stop("enough") if run.clock.step == 3 else None)
    own_loop(tmp_path, stop, max_duration=before)
    again, _ = own_loop(tmp_path, max_duration=given, resume="auto")
    assert again.run.clock.step == step


@pytest.mark.parametrize(("given", "step"), [("4st", 4), ("9st", 9)])
def test_a_finished_own_loop_of_an_older_version_goes_on_with_a_larger_max_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, step: int
) -> None:
    """Its checkpoints do not say what the script has given."""
    change_saved_state(monkeypatch, lambda state: {**state, "max_duration": state.pop("given_duration")})
    own_loop(tmp_path)
    assert own_loop(tmp_path, max_duration=given, resume="auto")[0].run.clock.step == step


def test_an_own_loop_that_is_opened_again_at_its_end_is_told_what_makes_it_longer(tmp_path: Path) -> None:
    model = TinyModel()
    loop = Loop(model, momentum(model.parameters()), max_duration="4st", folder=False)

    def train() -> None:
        for x, y in loop.batches(tiny_data(BATCHES)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()

    with loop:
        train()
    with pytest.raises(SetupError, match=r"'4st' is reached .*; give a larger one: loop.run.max_duration = …$"), loop:
        train()
    with loop:
        loop.run.max_duration = "7st"  # type: ignore[assignment]
        train()
    assert loop.run.clock.step == 7


def test_a_run_that_was_left_may_go_on_to_another_end(tmp_path: Path) -> None:
    whole = saved_fit(tmp_path / "whole", max_duration="13st")
    fit_and_leave(tmp_path / "run", max_duration="10st")
    again = saved_fit(tmp_path / "run", max_duration="13st", resume="auto")
    assert same_tensors(again.weights, whole.weights)


# -- what a stop before the checkpoint leaves to do --------------------------------------------------


def test_a_run_that_had_reached_its_end_inside_an_epoch_ends_the_epoch_once(tmp_path: Path) -> None:
    """Saved at its last step by a callback that saves no end: what comes after the save is still to come."""

    def run_it(folder: Path, *callbacks: Any, resume: Any = None) -> list[str]:
        recorder = Recorder()
        trainer = Trainer(
            max_duration="6st",
            folder=folder,
            resume=resume,
            device="cpu",
            callbacks=[recorder, *callbacks, hl.Checkpointer(every="2st", at_end=False)],
        )
        trainer.fit(TinyModel(), tiny_data(BATCHES), loss=nn.CrossEntropyLoss(), optimizer=momentum)
        return recorder.seen

    whole = run_it(tmp_path / "whole")
    with pytest.raises(LeftError):
        run_it(tmp_path / "run", leave(6, "train_epoch_end"))
    again = run_it(tmp_path / "run", resume="auto")
    end = whole[len(whole) - whole[::-1].index("checkpoint_saved") :]
    assert end == literal("metrics_ready train_epoch_end epoch_end train_end fit_end teardown")
    assert again == [*literal("setup checkpoint_loaded model_ready fit_start train_start"), *end]


def test_a_stop_that_was_announced_before_the_checkpoint_is_not_announced_again(tmp_path: Path) -> None:
    heard: list[str] = []

    def run_it(resume: Any = None, *, kill: bool = False) -> Any:
        def stop(run: Any) -> None:
            heard.append(run.stop_reason)
            if kill:
                signal.raise_signal(signal.SIGTERM)

        callback = hl.LambdaCallback(
            on_train_step_end=lambda run: run.stop("enough") if run.clock.step == 6 else None, on_stop=stop
        )
        return saved_fit(tmp_path / "run", callback, resume=resume)

    with pytest.raises(hl.Preempted):
        run_it(kill=True)
    again = run_it("auto")
    assert (again.result.stop_reason, again.result.stopped_by) == ("enough", "LambdaCallback")
    assert heard == ["enough"]


class FourBatches:
    """Data without a length."""

    def __iter__(self) -> Any:
        return iter(tiny_data(4))


def test_a_run_that_a_signal_left_in_its_last_evaluation_begins_no_epoch_after_the_resume(tmp_path: Path) -> None:
    """The evaluation and the end of the epoch are left, and callbacks that count epochs must not count one more."""
    heard: list[str] = []

    def run_it(*callbacks: Any) -> Any:
        options: dict[str, Any] = {"max_duration": "2ep", "folder": tmp_path / "run", "resume": "auto", "seed": 1}
        return fit(*callbacks, train=FourBatches(), val=tiny_data(2), **options)

    def leave(run: Any) -> None:
        if run.clock.epoch == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(hl.Preempted):
        run_it(hl.on("eval_batch_start")(leave))
    events = ("train_epoch_start", "train_epoch_end", "epoch_end", "eval_end", "train_end")
    again = run_it(*(hl.on(event)(lambda run, event=event: heard.append(event)) for event in events))
    assert heard == ["eval_end", "epoch_end", "train_end"]
    assert again.clock.epoch == 2


# -- what does not fit -------------------------------------------------------------------------------


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 9), nn.Linear(9, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.hidden(x))


def test_other_names_and_shapes_of_weights_are_listed(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")
    with pytest.raises(CheckpointMismatchError, match=r"hidden\.weight \(wanted \[9, 4\], found \[8, 4\]\)"):
        saved_fit(tmp_path / "run", model=Wider(), resume="auto")
    other = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    with pytest.raises(CheckpointMismatchError, match=r"missing 4: 0\.weight.*unexpected 4: hidden\.weight"):
        saved_fit(tmp_path / "run", model=other, resume="auto")


def test_other_optimizers_and_another_number_of_schedulers_are_named(tmp_path: Path) -> None:
    rule = torch.optim.lr_scheduler.ExponentialLR
    fit_and_leave(tmp_path / "run", scheduler=lambda optimizer: rule(optimizer, 0.9))
    with pytest.raises(CheckpointMismatchError, match="has the optimizers SGD, this run has AdamW"):
        saved_fit(tmp_path / "run", optimizer=torch.optim.AdamW, resume="auto")
    with pytest.raises(CheckpointMismatchError, match="the checkpoint has 1 schedulers and this run 0"):
        saved_fit(tmp_path / "run", resume="auto")

    def in_groups(parameters: Any) -> Any:
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.1)

    with pytest.raises(CheckpointMismatchError, match="optimizers/SGD does not fit the checkpoint"):
        saved_fit(
            tmp_path / "run", optimizer=in_groups, scheduler=lambda optimizer: rule(optimizer, 0.9), resume="auto"
        )


def test_an_optimizer_of_another_kind_under_the_same_name_is_refused_before_a_step_fails(tmp_path: Path) -> None:
    first, second = TinyModel(), TinyModel()
    fit_and_leave(tmp_path / "run", model=first, optimizer={"main": torch.optim.AdamW(first.parameters())})
    with pytest.raises(CheckpointMismatchError, match=r"optimizers/main does not fit.*no momentum.*which SGD needs"):
        saved_fit(tmp_path / "run", model=second, optimizer={"main": momentum(second.parameters())}, resume="auto")


def test_a_refused_resume_leaves_the_folder_free_and_as_it_was(whole: Ran, tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")

    def files() -> dict[Path, bytes]:
        found = (path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "run.lock")
        return {path: path.read_bytes() for path in found}

    before = files()
    with pytest.raises(CheckpointMismatchError):
        saved_fit(tmp_path / "run", model=Wider(), resume="auto")
    assert files() == before
    assert same_tensors(saved_fit(tmp_path / "run", resume="auto").weights, whole.weights)


def test_another_number_of_threads_and_another_window_are_said(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        with pytest.warns(
            hl.HooklineWarning, match=f"not bitwise as it would have continued: threads {threads} → {threads + 1}"
        ):
            saved_fit(tmp_path / "a", resume=tmp_path / "run")
    finally:
        torch.set_num_threads(threads)
    with pytest.warns(hl.HooklineWarning, match="would have continued: accumulate 1 → 2"):
        saved_fit(tmp_path / "b", resume=tmp_path / "run", accumulate=2)


def test_data_that_has_become_shorter_is_an_error_and_not_another_epoch(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", train=tiny_data(5), step=4)
    with pytest.raises(hl.HooklineError, match="the epoch is to continue at batch 4 and the list has only 3"):
        saved_fit(tmp_path / "run", train=tiny_data(3), resume="auto")


# -- callbacks -----------------------------------------------------------------------------------------


class Remembering(hl.Callback):
    state = ("steps",)

    def __init__(self, label: str = "a") -> None:
        self.steps: list[int] = []

    def on_train_step_end(self, run: Any) -> None:
        self.steps = [*self.steps, run.clock.step]


class Other(Remembering):
    pass


def test_callbacks_that_are_missing_or_new_are_reported(tmp_path: Path, said: Callable[[], str]) -> None:
    fit_and_leave(tmp_path / "run", Remembering("a"))
    other = Other("b")
    with pytest.warns(hl.HooklineWarning, match=r"callbacks that this run lacks: Remembering\(label='a'\)"):
        saved_fit(tmp_path / "run", other, resume="auto")
    assert "callbacks without a saved state, which start from scratch: Other(label='b')" in said()
    assert other.steps == [7, 8, 9, 10]


def test_a_callback_with_a_name_keeps_its_state_when_its_arguments_change(tmp_path: Path) -> None:
    first, second = Remembering("a"), Remembering("b")
    first.name = second.name = "mine"
    fit_and_leave(tmp_path / "run", first)
    saved_fit(tmp_path / "run", second, resume="auto")
    assert second.steps == list(range(1, 11))


def test_a_callback_with_its_own_state_key_keeps_its_state_when_its_arguments_change(tmp_path: Path) -> None:
    class Keyed(Remembering):
        @property
        def state_key(self) -> str:
            return "the steps"

    fit_and_leave(tmp_path / "run", Keyed("a"))
    again = Keyed("b")
    saved_fit(tmp_path / "run", again, resume="auto")
    assert again.steps == list(range(1, 11))


class Holding(hl.Callback):
    """Holds things that have a state of their own, and moves each of them at every step."""

    def __init__(self) -> None:
        self.critic = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            self.critic[0].weight.fill_(0.5)
            self.critic[0].bias.zero_()
        self.optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.1)
        self.generator = torch.Generator().manual_seed(4)
        self.drawn: list[float] = []

    def on_train_step_end(self, run: Any) -> None:
        noise = torch.randn(8, 4, generator=self.generator)
        self.drawn.append(noise[0, 0].item())
        self.critic(noise).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class HoldingAndNaming(Holding):
    """The same, with what it holds named as its state, too."""

    state = ("critic", "optimizer", "generator", "drawn")


@pytest.mark.parametrize("kind", [Holding, HoldingAndNaming])
def test_modules_optimizers_and_generators_that_a_callback_holds_go_on(tmp_path: Path, kind: type[Holding]) -> None:
    whole, again = kind(), kind()
    saved_fit(tmp_path / "whole", whole)
    fit_and_leave(tmp_path / "run", kind())
    saved_fit(tmp_path / "run", again, resume="auto")
    assert again.drawn[-4:] == whole.drawn[-4:]
    assert len(again.drawn) == (10 if kind is HoldingAndNaming else 4)
    assert same_tensors(again.critic.state_dict(), whole.critic.state_dict())
    assert again.optimizer.state_dict()["state"][0]["step"] == 10


def test_a_hook_that_comes_now_and_then_does_not_come_again_after_a_resume(tmp_path: Path) -> None:
    def hooks(seen: list[Any]) -> list[Any]:
        return [
            hl.on("train_step_end", every="4st")(lambda run: seen.append(("every", run.clock.step))),
            hl.on("train_step_end", once=True)(lambda run: seen.append(("once", run.clock.step))),
            hl.on("train_step_end", at="5st")(lambda run: seen.append(("at", run.clock.step))),
            hl.on("train_step_end", every="0.25dur")(lambda run: seen.append(("dur", run.clock.step))),
        ]

    whole: list[Any] = []
    saved_fit(tmp_path / "whole", *hooks(whole))
    for step in (5, 6):
        seen: list[Any] = []
        fit_and_leave(tmp_path / f"{step}", *hooks(seen), step=step)
        saved_fit(tmp_path / f"{step}", *hooks(seen), resume="auto")
        assert seen == whole


def test_messages_are_there_again_with_what_is_left_of_their_lives(tmp_path: Path) -> None:
    def send(run: Any) -> None:
        if run.clock.step == 5:
            for keep in ("once", "epoch", "forever"):
                run.messages.send("plots", f"{keep}.png", keep=keep)

    def read(run: Any) -> None:
        if run.clock.step in (7, 9):
            seen.append((run.clock.step, run.messages.read("plots")))

    seen: list[Any] = []
    fit_and_leave(tmp_path / "run", hl.LambdaCallback(on_train_step_end=send))
    saved_fit(tmp_path / "run", hl.LambdaCallback(on_train_step_end=read), resume="auto")
    assert seen == [(7, ["once.png", "epoch.png", "forever.png"]), (9, ["forever.png"])]


def test_a_state_that_cannot_be_saved_is_refused_before_the_first_step_with_its_path(tmp_path: Path) -> None:
    class Holder(hl.Callback):
        state = ("table",)

        def __init__(self) -> None:
            self.table = {"rows": [1, {"open": object()}]}

        def on_train_step_start(self, run: Any) -> None:
            raise AssertionError("a step was begun")

    with pytest.raises(StateError, match=r"callbacks/.*Holder\(\)/state/table/rows/1/open: an object cannot be saved"):
        saved_fit(tmp_path / "run", Holder())


def test_a_state_of_a_new_version_of_a_callback_says_what_is_missing(tmp_path: Path) -> None:
    def kind(*names: str) -> Any:
        class Changing(hl.Callback):
            state = names
            first = second = 0

        return Changing()

    fit_and_leave(tmp_path / "run", kind("first"))
    with pytest.raises(hl.HooklineError, match=r"Changing.*the saved state lacks second; it has first"):
        saved_fit(tmp_path / "run", kind("first", "second"), resume="auto")


def test_a_callback_that_had_no_state_yet_begins_anew_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To give one's callback the state that was forgotten must not make its run impossible to resume."""

    def kind(*names: str) -> Any:
        class Changing(hl.Callback):
            state = names
            first = 0

        return Changing()

    fit_and_leave(tmp_path / "run", kind())
    saved_fit(tmp_path / "run", kind("first"), resume="auto")
    assert "had no state when the checkpoint was saved, and starts without one" in caplog.text


# -- events --------------------------------------------------------------------------------------------


class Recorder(hl.Callback):
    """Notes every event, and when scopes are entered and left."""

    def __init__(self, *, scopes: bool = False) -> None:
        self.seen: list[str] = []
        self.scopes = scopes

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)

    def _around(self, name: str) -> Iterator[None]:
        self.seen += [f"+{name}"] if self.scopes else []
        yield
        self.seen += [f"-{name}"] if self.scopes else []

    def around_fit(self, run: Any) -> Iterator[None]:
        yield from self._around("fit")

    def around_train(self, run: Any) -> Iterator[None]:
        yield from self._around("train")

    def around_epoch(self, run: Any) -> Iterator[None]:
        yield from self._around("epoch")


STEP = """
    batch_fetch_start batch_fetch_end train_step_start train_batch_start forward_start forward_end loss_ready
    backward_start backward_end train_batch_end gradients_ready optimizer_step_start optimizer_step_end zero_grad
    train_step_end
"""
SAVE = "checkpoint_save checkpoint_saved"


def test_the_events_of_a_run_that_goes_on_inside_an_epoch(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", max_duration="2ep")
    recorder = Recorder(scopes=True)
    saved_fit(tmp_path / "run", recorder, resume="auto", max_duration="2ep")
    assert recorder.seen == literal(
        "setup checkpoint_loaded model_ready +fit fit_start +train train_start +epoch",
        f"{STEP} step_settled {SAVE}",
        f"{STEP} metrics_ready train_epoch_end epoch_end -epoch step_settled",
        f"train_end -train fit_end -fit {SAVE} teardown",
    )


def test_the_events_of_a_run_that_goes_on_at_the_edge_of_an_epoch(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", step=4, max_duration="5st")
    recorder = Recorder(scopes=True)
    saved_fit(tmp_path / "run", recorder, resume="auto", max_duration="5st")
    assert recorder.seen == literal(
        "setup checkpoint_loaded model_ready +fit fit_start +train train_start +epoch train_epoch_start",
        f"{STEP} step_settled metrics_ready train_epoch_end epoch_end -epoch",
        f"train_end -train fit_end -fit {SAVE} teardown",
    )


def test_the_events_of_a_run_that_begins_with_the_evaluation_it_was_left_in(tmp_path: Path) -> None:
    def signal_once(run: Any) -> None:
        if run.clock.step == 4:
            signal.raise_signal(signal.SIGTERM)

    data = {"val": tiny_data(2), "max_duration": "5st"}
    with pytest.raises(hl.Preempted):
        saved_fit(tmp_path / "run", hl.LambdaCallback(on_eval_batch_start=signal_once), **data)
    recorder = Recorder(scopes=True)
    saved_fit(tmp_path / "run", recorder, resume="auto", **data)
    batch = "batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end"
    evaluation = f"eval_start eval_loader_start {batch} {batch} eval_loader_end eval_end"
    assert recorder.seen == literal(
        f"setup checkpoint_loaded model_ready +fit fit_start +train train_start +epoch {evaluation}",
        f"epoch_end -epoch step_settled {SAVE}",
        f"+epoch train_epoch_start {STEP} {evaluation} step_settled metrics_ready train_epoch_end epoch_end -epoch",
        f"train_end -train fit_end -fit {SAVE} teardown",
    )


def test_what_a_callback_sees_when_a_checkpoint_is_loaded_is_the_state_of_the_checkpoint(tmp_path: Path) -> None:
    seen: list[Any] = []
    saved_fit(tmp_path / "whole", Remembering())
    path = at_step(tmp_path / "whole", 6)
    memory = Remembering()

    def look(run: Any) -> None:
        weights = {name: value.clone() for name, value in run.model.state_dict().items()}
        seen.append((run.checkpoint, run.clock.step, run.history.steps("train/loss"), memory.steps, weights))

    saved_fit(tmp_path / "run", memory, hl.LambdaCallback(on_checkpoint_loaded=look), resume=path)
    assert seen[0][:4] == (path, 6, [2, 4, 6], [1, 2, 3, 4, 5, 6])
    assert same_tensors(seen[0][4], dict(store_of(tmp_path / "whole").load(path).weights))


# -- what is there again ---------------------------------------------------------------------------------


def test_the_seed_is_that_of_the_checkpoint_whatever_the_script_says_now(tmp_path: Path) -> None:
    def shuffled() -> Any:
        samples = [(x[index], y[index]) for x, y in tiny_data(5) for index in range(len(y))]
        return DataLoader(samples, batch_size=8, shuffle=True)

    whole = saved_fit(tmp_path / "whole", train=shuffled(), seed=3)
    other = saved_fit(tmp_path / "other", train=shuffled(), seed=4)
    assert not same_tensors(whole.weights, other.weights)
    for name, seed in (("a", 4), ("b", None)):
        fit_and_leave(tmp_path / name, train=shuffled(), seed=3)
        torch.manual_seed(77)
        again = saved_fit(
            tmp_path / name, train=shuffled(), seed=seed, resume="auto", model=TinyModel(dropout=0.2, seed=6)
        )
        assert same_tensors(again.weights, whole.weights)


def test_metrics_of_steps_that_are_done_again_are_written_once(whole: Ran, tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run", step=9, every="5st")
    assert [row[1] for row in rows_of(tmp_path / "run") if row[0] == "train/loss"][-1] == 9
    again = saved_fit(tmp_path / "run", resume="auto", every="5st")
    assert rows_of(tmp_path / "run") == rows_of(whole.folder)
    assert again.result.history["train/loss"] == whole.result.history["train/loss"]


def test_a_file_of_metrics_that_is_gone_or_cut_is_said_and_the_run_goes_on(whole: Ran, tmp_path: Path) -> None:
    for name in ("gone", "cut"):
        fit_and_leave(tmp_path / name)
        path = tmp_path / name / "metrics.jsonl"
        path.unlink() if name == "gone" else os.truncate(path, len(path.read_bytes().splitlines(keepends=True)[0]))
        with pytest.warns(hl.HooklineWarning, match=r"metrics\.jsonl is shorter .* rows are lost"):
            again = saved_fit(tmp_path / name, resume="auto")
        assert same_tensors(again.weights, whole.weights)


def test_frozen_parameters_and_parts_in_eval_mode_are_so_again(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.out = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.fill_(0.1)

        def forward(self, x: Any) -> Any:
            return self.out(self.norm(self.body(x)))

    def freeze(run: Any) -> None:
        if run.clock.step == 3:
            run.model.norm.eval()
            run.model.body.requires_grad_(False)

    whole = saved_fit(tmp_path / "whole", hl.LambdaCallback(on_train_step_end=freeze), model=Frozen())
    fit_and_leave(tmp_path / "run", hl.LambdaCallback(on_train_step_end=freeze), model=Frozen())
    modes: list[Any] = []

    def look(run: Any) -> None:
        modes.append((run.model.training, run.model.norm.training, run.model.body.weight.requires_grad))

    again = saved_fit(tmp_path / "run", hl.LambdaCallback(on_train_step_start=look), model=Frozen(), resume="auto")
    assert modes == [(True, False, False)] * 4
    assert same_tensors(again.weights, whole.weights)


def test_what_was_thawed_is_not_frozen_again_by_the_script(tmp_path: Path) -> None:
    def frozen() -> TinyModel:
        model = TinyModel(dropout=0.2)
        model.hidden.requires_grad_(False)
        return model

    def thaw(run: Any) -> None:
        if run.clock.step == 3:
            run.model.hidden.requires_grad_(True)

    whole = saved_fit(tmp_path / "whole", hl.LambdaCallback(on_train_step_end=thaw), model=frozen())
    fit_and_leave(tmp_path / "run", hl.LambdaCallback(on_train_step_end=thaw), model=frozen())
    again = saved_fit(tmp_path / "run", model=frozen(), resume="auto")
    assert same_tensors(again.weights, whole.weights)
    assert not torch.equal(whole.weights["hidden.weight"], frozen().hidden.weight)


def test_all_of_the_last_checkpoint_is_the_same_after_a_resume(tmp_path: Path) -> None:
    saved_fit(tmp_path / "whole", Remembering(), val=tiny_data(2))
    fit_and_leave(tmp_path / "run", Remembering(), val=tiny_data(2))
    saved_fit(tmp_path / "run", Remembering(), val=tiny_data(2), resume="auto")
    one, other = (store_of(tmp_path / name).load(at_step(tmp_path / name, 10)) for name in ("whole", "run"))
    ignored = ("about/seconds", "about/run", "*/seconds", "state/history/bytes", "state/callbacks/LambdaCallback*")
    assert [str(found) for found in compare(one, other, ignored)] == []


def test_an_own_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    def run_it(folder: str, *, fail: int = -1, resume: Any = None) -> tuple[list[int], dict[str, Any]]:
        model, steps = TinyModel(dropout=0.2), []
        options: dict[str, Any] = {"max_duration": "10st", "seed": 3, "device": "cpu", "resume": resume}
        saver = hl.Checkpointer(every="2st", keep_last=None)
        with Loop(model, momentum(model.parameters()), folder=tmp_path / folder, callbacks=[saver], **options) as loop:
            for x, y in loop.batches(tiny_data(BATCHES)):
                if loop.run.clock.step == fail:
                    raise LeftError
                loop.backward(nn.functional.cross_entropy(model(x), y))
                loop.step()
                steps.append(loop.run.clock.step)
        return steps, model.state_dict()

    _, whole = run_it("whole")
    with pytest.raises(LeftError):
        run_it("run", fail=7)
    steps, again = run_it("run", resume="auto")
    assert steps == [7, 8, 9, 10]
    assert same_tensors(again, whole)
    assert run_it("run", resume="auto")[0] == []  # it is finished


# -- data that cannot be exact -----------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for x, y in tiny_data(BATCHES):
            yield from zip(x, y, strict=True)


class Batches:
    """A loader of the user's own, which can be read again."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tiny_data(BATCHES))


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda: DataLoader(Stream(), batch_size=8), "its data set (Stream) is iterable: a resume reads and drops"),
        (lambda: Batches(), "the loader (Batches) can only be read from its beginning"),
    ],
)
def test_data_that_must_be_read_again_is_said_before_the_first_step_and_is_exact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[], Any], note: str
) -> None:
    whole = saved_fit(tmp_path / "whole", train=make())
    caplog.clear()
    said_at: list[str] = []
    callback = hl.LambdaCallback(on_train_start=lambda run: said_at.append(caplog.text))
    fit_and_leave(tmp_path / "run", callback, train=make())
    assert note in said_at[0]
    again = saved_fit(tmp_path / "run", train=make(), resume="auto")
    assert same_tensors(again.weights, whole.weights)


def test_a_generator_is_said_to_be_used_up_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stream() -> Iterator[Any]:
        for _ in range(9):
            yield from tiny_data(BATCHES)

    said_at: list[str] = []
    callback = hl.LambdaCallback(on_train_start=lambda run: said_at.append(caplog.text))
    saved_fit(tmp_path / "run", callback, train=stream(), max_duration="6st")
    assert "after a resume: " in said_at[0]


def test_a_run_that_saves_nothing_is_not_told_what_a_resume_could_not_do(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(max_duration="4st", folder=False, device="cpu")
    trainer.fit(TinyModel(), Batches(), loss=nn.CrossEntropyLoss(), optimizer=momentum)
    assert "after a resume" not in caplog.text


# -- in other processes --------------------------------------------------------------------------------------

HOLDER = """
import sys, time
import torch
from torch import nn
import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

def wait(run):
    print("open", flush=True)
    time.sleep(600)

Trainer(max_duration="2st", folder=sys.argv[1], callbacks=[hl.LambdaCallback(on_train_start=wait)]).fit(
    TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
)
"""


def test_two_runs_in_one_folder_are_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with start_script(HOLDER, args=[tmp_path / "run"]) as script:
        script.wait_for("open")
        with pytest.raises(CheckpointLockedError, match=f"in use by process {script.process.pid}"):
            saved_fit(tmp_path / "run", resume="auto")
        script.send(9)
        script.finish()
    assert saved_fit(tmp_path / "run", resume="auto").result.clock.step == 10


WITHOUT_PICKLE = """
import os, pickle, signal, sys
import torch
import torch.utils.data
from torch import nn
import hookline as hl
from hookline.testing import TinyModel, tiny_data

def refuse(*args, **kwargs):
    raise AssertionError("pickle was used")

class Reader(pickle.Unpickler):
    __init__ = refuse

class Writer(pickle.Pickler):
    __init__ = refuse

torch.load = torch.serialization.load = pickle.load = pickle.loads = refuse
torch.save = torch.serialization.save = pickle.dump = pickle.dumps = refuse
pickle.Unpickler, pickle.Pickler = Reader, Writer  # classes: others are made of them

class Memory(hl.Callback):
    state = ("table",)
    def __init__(self): self.table = {"a": torch.ones(2), 3: (1, float("nan"), {4}, b"x")}

def train(folder, leave_at=None):
    def leave(run):
        if run.clock.step == leave_at:
            signal.raise_signal(signal.SIGTERM)

    model = TinyModel(dropout=0.3)
    optimizer = torch.optim.AdamW(model.parameters())
    result = hl.fit(
        model, torch.utils.data.DataLoader([(x[0], y[0]) for x, y in tiny_data(8)], 2, shuffle=True), tiny_data(2),
        loss=nn.CrossEntropyLoss(), optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        max_duration="3ep", folder=folder, resume="auto", device="cpu", seed=1, precision="fp16",
        callbacks=[Memory(), hl.EarlyStopping(patience=9), hl.Checkpointer(every="2st", background=True),
                   hl.ProgressBar(style=None), hl.LambdaCallback(on_train_step_start=leave)],
    )
    print("step", result.clock.step, [value.double().sum().item() for value in model.state_dict().values()])

train(sys.argv[1])
try:
    train(sys.argv[2], leave_at=5)
except SystemExit as left:
    print(left.code)
train(sys.argv[2])
"""


def test_no_pickle_is_written_or_read_in_a_run_and_its_resume(tmp_path: Path) -> None:
    done = run_script(WITHOUT_PICKLE, args=[tmp_path / "whole", tmp_path / "run"])
    newest = tmp_path / "run" / "checkpoints" / "step-00000006"
    said = [
        f"SIGTERM: saved {newest}; the run exits with code 143",
        f"resumed from {newest}: epoch 1, step 6",
    ]
    assert (done.returncode, done.stderr.splitlines()) == (0, said)
    whole, left, again = done.stdout.splitlines()
    assert (left, again) == ("143", whole)
    files = {path.name for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()}
    assert files == {"manifest.json", "model.safetensors", "state.json", "state.safetensors"}


def test_a_checkpoint_that_was_moved_to_another_machine_is_all_that_is_needed(tmp_path: Path) -> None:
    whole = saved_fit(tmp_path / "whole")
    shutil.copytree(at_step(tmp_path / "whole", 6), tmp_path / "alone")
    shutil.rmtree(tmp_path / "whole")
    with pytest.warns(hl.HooklineWarning, match="rows are lost"):
        again = saved_fit(tmp_path / "new", resume=tmp_path / "alone")
    assert same_tensors(again.weights, whole.weights)


def test_a_metric_of_whole_numbers_that_was_pending_is_gone_on_with(tmp_path: Path) -> None:
    class Counts(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"right": (run.outputs.argmax(-1) == run.batch[1]).sum()})

    whole = saved_fit(tmp_path / "whole", Counts())
    fit_and_leave(tmp_path / "run", Counts())
    again = saved_fit(tmp_path / "run", Counts(), resume="auto")
    assert again.result.history["train/right"] == whole.result.history["train/right"]


def test_a_row_that_was_torn_by_a_power_cut_is_said_and_left_out(tmp_path: Path) -> None:
    fit_and_leave(tmp_path / "run")
    rows = tmp_path / "run" / "metrics.jsonl"
    rows.write_bytes(rows.read_bytes()[:-20])
    with pytest.warns(hl.HooklineWarning, match="shorter"):
        again = saved_fit(tmp_path / "run", resume="auto")
    assert json_lines(rows)[-1]["step"] == again.result.clock.step


def test_a_checkpoint_with_random_states_in_words_can_be_gone_on_from() -> None:
    """As they were saved before they were tensors."""
    import random

    saved = random_states()
    expected = random.random()
    version, numbers, gauss = saved["python"]
    set_random_states({**saved, "python": (version, tuple(numbers.tolist()), gauss)})
    assert random.random() == expected
    set_random_states(saved)
    assert random.random() == expected
