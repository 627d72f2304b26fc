"""``Checkpointer``: when a run is saved, what is kept, under which names, and what each mistake says."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import (
    ArgumentError,
    CheckpointCorruptError,
    HooklineWarning,
    MetricError,
    RegistrationError,
    SetupError,
)
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, crash_at, fit, same_tensors, saved_steps, weights_of


def terminate(run: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


class Values(hl.Callback):
    """Logs one value after the other, at each evaluation."""

    writes = ("val/score",)

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def on_eval_end(self, run: Any) -> None:
        run.log({"val/score": self.values.pop(0)})


class Stream:
    """Batches without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tiny_data(3))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "checkpoints"))


# -- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("3st", [3, 6, 8]),
        ("1ep", [4, 8]),
        ("2ep", [8]),
        ("40sp", [5, 8]),  # eight samples a step: 40 at step 5, 80 never
        ("0.25dur", [2, 4, 6, 8]),
        ("1000s", [8]),
        (hl.Duration.parse("4st"), [4, 8]),
        (None, [4, 8]),
    ],
)
def test_it_saves_when_it_was_told_to(tmp_path: Path, every: Any, expected: list[int]) -> None:
    fit(hl.Checkpointer(every, keep_last=None), folder=tmp_path)
    assert saved_steps(tmp_path) == expected


def test_seconds_count_the_time_of_training(tmp_path: Path) -> None:
    fit(hl.Checkpointer("0.000001s", keep_last=None, at_end=False), folder=tmp_path)
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_without_at_end_nothing_is_saved_behind_the_last_one_that_was_due(tmp_path: Path) -> None:
    fit(hl.Checkpointer("3st", at_end=False, keep_last=None), folder=tmp_path)
    assert saved_steps(tmp_path) == [3, 6]


def test_the_last_step_is_saved_once_and_as_finished(tmp_path: Path) -> None:
    fit(hl.Checkpointer("4st", keep_last=None), folder=tmp_path)
    assert [c.about.finished for c in Store(tmp_path / "checkpoints").checkpoints()] == [False, True]
    assert names(tmp_path) == ["step-00000004", "step-00000008"]


def test_on_eval_saves_after_each_evaluation_and_nowhere_else(tmp_path: Path) -> None:
    fit(
        hl.Checkpointer(on_eval=True, at_end=False, keep_last=None), folder=tmp_path, val=tiny_data(1), eval_every="3st"
    )
    assert saved_steps(tmp_path) == [3, 6, 8]  # there is an evaluation at the end


def test_on_eval_and_every_are_both_heeded(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer("5st", on_eval=True, keep_last=None)
    fit(checkpointer, folder=tmp_path, val=tiny_data(1), eval_every="4st")
    assert saved_steps(tmp_path) == [4, 5, 8]


def test_an_evaluation_that_is_asked_for_outside_of_fit_saves_nothing(tmp_path: Path) -> None:
    trainer = Trainer(folder=tmp_path / "run", callbacks=[hl.Checkpointer(on_eval=True, monitor="val/loss")])
    model = TinyModel()
    trainer.evaluate(model, tiny_data(1), loss=CE)
    trainer.predict(model, tiny_data(1))
    trainer.test(model, tiny_data(1), loss=CE)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_early_stopping_ends_is_saved_as_finished(tmp_path: Path) -> None:
    stopper = hl.EarlyStopping("val/score", patience=1, mode="min")
    result = fit(
        hl.Checkpointer("1ep"), stopper, Values(1, 2, 3, 4, 5), folder=tmp_path, val=tiny_data(1), max_duration="9ep"
    )
    assert result.stopped_by == "EarlyStopping"
    newest = Store(tmp_path / "checkpoints").checkpoints()[-1].about
    assert (newest.step, newest.finished) == (result.clock.step, True)
    again = fit(
        hl.Checkpointer("1ep"),
        hl.EarlyStopping("val/score", patience=1, mode="min"),
        Values(),
        folder=tmp_path,
        val=tiny_data(1),
        max_duration="9ep",
        resume="auto",
    )
    assert (again.clock.step, again.stop_reason) == (result.clock.step, result.stop_reason)


def test_data_without_a_length_is_saved_at_the_edges_of_its_epochs(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer(monitor="val/loss", keep_last=None)
    fit(checkpointer, folder=tmp_path, train=Stream(), val=tiny_data(1), max_duration="3ep")
    assert saved_steps(tmp_path) == [3, 6, 9]


# -- errors --------------------------------------------------------------------------------------


def test_after_an_error_in_a_step_the_checkpoint_is_inexact_and_auto_passes_it_over(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer("2st", on_exception=True)
    with pytest.raises(RuntimeError, match="planted"):
        fit(checkpointer, crash_at(3, "backward_end"), folder=tmp_path)
    found = Store(tmp_path / "checkpoints").checkpoints()
    assert [(c.about.step, c.about.exact) for c in found] == [(2, True), (3, False)]
    went_on: list[Path] = []
    loaded = hl.on("checkpoint_loaded")(lambda run: went_on.append(run.checkpoint))
    fit(hl.Checkpointer("2st"), loaded, folder=tmp_path, resume="auto")
    assert [path.name for path in went_on] == ["step-00000002"]


def test_an_inexact_checkpoint_can_be_named_and_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.Checkpointer("2st", on_exception=True), crash_at(3, "backward_end"), folder=tmp_path)
    path = Store(tmp_path / "checkpoints").checkpoints()[-1].path
    with pytest.warns(HooklineWarning, match="saved after an error inside a step"):
        result = fit(folder=tmp_path / "other", resume=path)
    assert result.clock.step == 8


class Broken:
    """A loader that fails once at some batch."""

    def __init__(self, at: int) -> None:
        self.at, self.given = at, 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index >= 4:
            raise IndexError
        self.given += 1
        if self.given == self.at:
            raise OSError("the network is gone")
        return tiny_data(4)[index]


def test_after_a_loader_that_fails_between_steps_the_checkpoint_is_exact(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="network"):
        fit(hl.Checkpointer("1ep", on_exception=True), folder=tmp_path / "run", train=Broken(6))
    about = Store(tmp_path / "run" / "checkpoints").checkpoints()[-1].about
    assert (about.step, about.exact) == (5, True)
    went_on = fit(hl.Checkpointer("1ep"), folder=tmp_path / "run", train=Broken(0), resume="auto")
    whole = fit(folder=tmp_path / "whole", train=Broken(0))
    assert same_tensors(weights_of(went_on.model), weights_of(whole.model))


def test_without_on_exception_an_error_saves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.Checkpointer("2st"), crash_at(3, "backward_end"), folder=tmp_path)
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("event", ["setup", "fit_start", "backward_end"])
def test_an_error_before_the_first_step_saves_nothing(tmp_path: Path, event: str) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.Checkpointer(on_exception=True), crash_at(0, event), folder=tmp_path)
    assert saved_steps(tmp_path) == []


@pytest.mark.parametrize("event", ["eval_start", "train_end"])
def test_what_was_due_at_the_last_step_is_not_lost_when_something_fails_behind_it(tmp_path: Path, event: str) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.Checkpointer("4st"), crash_at(8, event), folder=tmp_path / "run", test=tiny_data(1))
    assert saved_steps(tmp_path / "run") == [4, 8]
    went_on = fit(hl.Checkpointer("4st"), folder=tmp_path / "run", test=tiny_data(1), resume="auto")
    assert "test/loss" in went_on.metrics
    whole = fit(folder=tmp_path / "whole", test=tiny_data(1))
    assert same_tensors(weights_of(went_on.model), weights_of(whole.model))


# -- what is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"keep_last": 1}, [8]),
        ({"keep_last": 2}, [7, 8]),
        ({}, [6, 7, 8]),
        ({"keep_last": None}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"keep_last": 1, "keep_every": "3st"}, [3, 6, 8]),
        ({"keep_last": 1, "keep_every": "1ep"}, [4, 8]),
        ({"keep_last": 1, "keep_every": "16sp"}, [2, 4, 6, 8]),
        ({"keep_last": 1, "monitor": "val/score", "mode": "min"}, [3, 8]),
        ({"keep_last": 1, "monitor": "val/score", "mode": "max"}, [1, 8]),
        ({"keep_last": 1, "monitor": "val/score", "mode": "min", "keep_best": 2}, [3, 5, 8]),
        ({"keep_last": 2, "monitor": "val/score", "mode": "min", "keep_best": 1, "keep_every": "4st"}, [3, 4, 7, 8]),
    ],
)
def test_what_any_rule_keeps_is_kept(tmp_path: Path, rules: dict[str, Any], kept: list[int]) -> None:
    scores = Values(9, 5, 1, 4, 2, 3, 6, 7)
    fit(hl.Checkpointer("1st", **rules), scores, folder=tmp_path, val=tiny_data(1), eval_every="1st")
    assert saved_steps(tmp_path) == kept


def test_the_only_checkpoint_that_can_be_resumed_stays_beside_a_newer_one_that_cannot(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.Checkpointer("2st", keep_last=1, on_exception=True), crash_at(3, "backward_end"), folder=tmp_path)
    assert saved_steps(tmp_path) == [2, 3]


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("background", [True, False])
def test_the_best_two_and_nothing_else(tmp_path: Path, weights_only: bool, background: bool) -> None:
    best = hl.Checkpointer(
        monitor="val/score", mode="min", keep_last=0, keep_best=2, weights_only=weights_only, background=background
    )
    values = Values(5, 1, 4, 2, 3)
    result = fit(best, values, folder=tmp_path, val=tiny_data(1), max_duration="20st")
    assert saved_steps(tmp_path) == [8, 16]
    assert result.best_checkpoint == tmp_path / "checkpoints" / "step-00000008"


def test_keep_best_means_the_validation_loss_unless_a_monitor_is_given(tmp_path: Path) -> None:
    fit(
        hl.Checkpointer(keep_last=0, keep_best=2, weights_only=True),
        folder=tmp_path,
        val=tiny_data(1),
        max_duration="16st",
    )
    losses = {
        found.about.step: found.about.metrics["val/loss"] for found in Store(tmp_path / "checkpoints").checkpoints()
    }
    assert len(losses) == 2
    assert losses.keys() == {12, 16}  # the loss falls


def test_without_the_last_ones_a_signal_still_saves_what_a_resume_needs(tmp_path: Path) -> None:
    def best() -> Any:
        return hl.Checkpointer(monitor="val/score", mode="min", keep_last=0, keep_best=1)

    leave = at_step(10, terminate)
    with pytest.raises(hl.Preempted):
        fit(best(), Values(1, 2), leave, folder=tmp_path, val=tiny_data(1), max_duration="16st")
    assert saved_steps(tmp_path) == [4, 10]
    fit(best(), Values(3, 4), folder=tmp_path, val=tiny_data(1), max_duration="16st", resume="auto")
    assert saved_steps(tmp_path) == [4]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("best", ["best", "best-2", "best-3", "best-4"]), ("e{epoch}", ["e0", "e1", "e1-2", "e2"])],
)
def test_a_name_that_is_taken_gets_a_number(tmp_path: Path, name: str, expected: list[str]) -> None:
    fit(hl.Checkpointer("2st", name=name, keep_last=None), folder=tmp_path)
    assert names(tmp_path) == expected


def test_the_best_checkpoint_is_on_the_result_also_after_a_resume(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer(monitor="val/score", mode="min", keep_last=1)
    first = fit(checkpointer, Values(5, 1), folder=tmp_path, val=tiny_data(1), max_duration="2ep")
    assert first.best_checkpoint == tmp_path / "checkpoints" / "step-00000008"
    checkpointer = hl.Checkpointer(monitor="val/score", mode="min", keep_last=1)
    second = fit(checkpointer, Values(7, 8), folder=tmp_path, val=tiny_data(1), resume="auto", extend="2ep")
    assert second.clock.epoch == 4
    assert second.best_checkpoint == tmp_path / "checkpoints" / "step-00000008"
    assert saved_steps(tmp_path) == [8, 16]


def test_a_monitor_counts_also_where_evaluations_and_saves_do_not_fall_together(tmp_path: Path) -> None:
    result = fit(
        hl.Checkpointer("3st", monitor="val/score", mode="min"), Values(1, 2), folder=tmp_path, val=tiny_data(1)
    )
    assert result.best_checkpoint == tmp_path / "checkpoints" / "step-00000004"


def test_without_a_monitor_no_checkpoint_is_the_best(tmp_path: Path) -> None:
    assert fit(hl.Checkpointer(), folder=tmp_path, val=tiny_data(1)).best_checkpoint is None


def test_a_metric_that_is_nan_is_said_once_and_is_never_the_best(tmp_path: Path) -> None:
    values = Values(float("nan"), 5, float("nan"), 6)
    with pytest.warns(HooklineWarning, match="val/score is NaN at step 2") as caught:
        result = fit(
            hl.Checkpointer(monitor="val/score", mode="min"),
            values,
            folder=tmp_path,
            val=tiny_data(1),
            eval_every="2st",
        )
    assert len(caught) == 1
    assert result.best_checkpoint == tmp_path / "checkpoints" / "step-00000004"


def test_a_monitor_that_nobody_logs_is_found_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"monitors 'val/lose', but .* Did you mean 'val/loss'"):
        fit(hl.Checkpointer(monitor="val/lose", mode="min"), folder=tmp_path, val=tiny_data(1))
    assert saved_steps(tmp_path) == []


def test_the_last_good_one_is_not_deleted_for_one_that_the_disk_has_spoilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.save

    def save(store: Store, snapshot: Any, name: str | None = None) -> Any:
        saved = real(store, snapshot, name)
        if snapshot.about.step == 4:
            weights = saved.path / "model.safetensors"
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1  # of the same size, so only its hash shows it
            weights.write_bytes(data)
        return saved

    monkeypatch.setattr(Store, "save", save)  # a disk that says it has written, and has written something else
    with pytest.raises(CheckpointCorruptError, match=r"step-00000004/model\.safetensors"):
        fit(hl.Checkpointer("2st", keep_last=1), folder=tmp_path)
    monkeypatch.undo()
    with pytest.warns(HooklineWarning, match=r"damaged checkpoints: step-00000004.*Using step-00000002\."):
        assert fit(hl.Checkpointer("2st", keep_last=1), folder=tmp_path, resume="auto").clock.step == 8


def test_an_old_one_that_cannot_be_deleted_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.rename

    def rename(source: Any, target: Any, **options: Any) -> None:
        if ".trash-" in str(target):
            raise PermissionError(13, "Permission denied")
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)  # a folder from which nothing can be moved, but into which one can write
    result = fit(hl.Checkpointer("2st", keep_last=1), folder=tmp_path)
    assert result.clock.step == 8
    assert saved_steps(tmp_path) == [2, 4, 6, 8]
    assert "could not be deleted" in caplog.text


# -- names and places ------------------------------------------------------------------------------


def test_names_are_filled_in_from_the_clock_and_the_metrics(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer(name="e{epoch}-{step:04d}-{val/score:.1f}", monitor="val/score", mode="min")
    fit(checkpointer, Values(0.25, 3), folder=tmp_path, val=tiny_data(1))
    assert names(tmp_path) == ["e1-0004-0.2", "e2-0008-3.0"]


def test_a_metric_in_a_name_does_not_cost_the_checkpoint_of_a_signal(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer(name="{step}-{val/loss:.2f}", on_eval=True)
    leave = at_step(3, terminate)
    with pytest.raises(hl.Preempted):
        fit(checkpointer, leave, folder=tmp_path, val=tiny_data(1))
    assert names(tmp_path) == ["3-none"]


def test_a_folder_with_checkpoints_is_not_begun_in_anew(tmp_path: Path) -> None:
    """The new ones would be older than those that are there, by their steps, and would be deleted first."""
    run, other = tmp_path / "run", tmp_path / "other"
    fit(hl.Checkpointer(name="{step}", at_end=False, every="4st"), folder=run)
    fit(hl.Checkpointer("4st"), folder=other, resume=run / "checkpoints" / "4")
    (run / "metrics.jsonl").unlink()  # someone tidies up, or the run was killed before its first row
    for resume in (None, other):
        with pytest.raises(SetupError, match=r"holds a run already \(checkpoints\).*resume='auto'"):
            fit(hl.Checkpointer(name="{step}", every="4st"), folder=run, resume=resume)
    assert names(run) == ["4", "8"]


def test_two_checkpointers_have_places_and_rules_of_their_own(tmp_path: Path) -> None:
    weights = hl.Checkpointer("1st", weights_only=True, folder="weights/all", keep_last=None)
    fit(hl.Checkpointer("4st", keep_last=1), weights, folder=tmp_path)
    assert saved_steps(tmp_path) == [8]
    assert [found.about.step for found in Store(tmp_path / "weights" / "all").checkpoints()] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("other", ["checkpoints", "checkpoints/", "./checkpoints"])
def test_two_checkpointers_in_one_place_are_refused(tmp_path: Path, other: str) -> None:
    with pytest.raises(SetupError, match="two callbacks save in 'checkpoints'"):
        fit(hl.Checkpointer("4st"), hl.Checkpointer("1st", folder=other), folder=tmp_path)


def test_a_signal_saves_where_a_resume_looks_whatever_the_order_of_the_callbacks(tmp_path: Path) -> None:
    leave = at_step(3, terminate)
    with pytest.raises(hl.Preempted) as caught:
        fit(hl.Checkpointer("5st", folder="milestones"), hl.Checkpointer("5st"), leave, folder=tmp_path)
    assert caught.value.checkpoint == tmp_path / "checkpoints" / "step-00000003"


def test_a_resume_that_looks_elsewhere_does_not_begin_anew_in_silence(tmp_path: Path) -> None:
    fit(hl.Checkpointer("2st", folder="models"), folder=tmp_path, max_duration="4st")
    rows = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(SetupError, match=r"resume='auto' looks in .*checkpoints'.*give resume='.*models'"):
        fit(hl.Checkpointer("2st", folder="models"), folder=tmp_path, resume="auto")
    assert (tmp_path / "metrics.jsonl").read_text() == rows
    fit(
        hl.Checkpointer("2st", folder="models", at_end=False),
        crash_at(99),
        folder=tmp_path,
        resume=tmp_path / "models",
        max_duration="4st",
    )


# -- weights only ----------------------------------------------------------------------------------


def test_weights_only_leaves_out_the_rest_and_a_resume_says_so(tmp_path: Path) -> None:
    fit(hl.Checkpointer("2st", weights_only=True), folder=tmp_path, max_duration="4st")
    assert sorted(os.listdir(tmp_path / "checkpoints" / "step-00000004")) == ["manifest.json", "model.safetensors"]
    with pytest.raises(hl.HooklineError, match=r"holds weights only.*LoadWeights"):
        fit(hl.Checkpointer("2st", weights_only=True), folder=tmp_path, resume="auto")


def test_a_signal_saves_everything_also_where_only_weights_are_saved_otherwise(tmp_path: Path) -> None:
    leave = at_step(3, terminate)
    with pytest.raises(hl.Preempted):
        fit(hl.Checkpointer("2st", weights_only=True), leave, folder=tmp_path / "run")
    went_on = fit(hl.Checkpointer("2st", weights_only=True), folder=tmp_path / "run", resume="auto")
    whole = fit(folder=tmp_path / "whole")
    assert same_tensors(weights_of(went_on.model), weights_of(whole.model))


def test_weights_never_push_out_the_only_checkpoint_that_a_run_can_go_on_from(tmp_path: Path) -> None:
    leave = at_step(3, terminate)
    with pytest.raises(hl.Preempted):
        fit(hl.Checkpointer("9st", weights_only=True, keep_last=1), leave, folder=tmp_path)
    fit(hl.Checkpointer("1st", weights_only=True, keep_last=1), folder=tmp_path, resume="auto")
    assert saved_steps(tmp_path) == [3, 8]


def test_any_tool_can_read_the_weights(tmp_path: Path) -> None:
    result = fit(hl.Checkpointer(), folder=tmp_path)
    weights = load_file(tmp_path / "checkpoints" / "step-00000008" / "model.safetensors")
    plain = TinyModel(seed=5)
    plain.load_state_dict(weights)
    assert same_tensors(weights_of(plain), weights_of(result.model))


# -- mistakes --------------------------------------------------------------------------------------


def test_a_mistake_is_said_when_the_callback_is_made() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"keep_last": 0}, r"Checkpointer\(keep_last=0\): keeps nothing. Give keep_best= or keep_every="),
        ({"keep_last": -1}, r"Checkpointer\(keep_last=-1\): must be an integer, 0 or more"),
        ({"keep_best": -1, "monitor": "val/loss"}, r"Checkpointer\(keep_best=-1\): must be"),
        ({"monitor": "val/loss", "keep_best": 0}, r"Checkpointer\(monitor='val/loss', keep_best=0\): "),
        ({"keep_every": "100tok"}, "keep_every='100tok'"),
        ({"keep_last": None, "keep_every": "1ep"}, "keeps all. Leave out"),
        ({"keep_last": None, "monitor": "val/loss", "keep_best": 2}, "keeps all. Leave out"),
        ({"every": "10"}, r"^Checkpointer\(every=…\): 10 has no unit"),
        ({"keep_every": 10}, r"^Checkpointer\(keep_every=10\): must be a duration"),
        ({"monitor": "val/los"}, r"^Checkpointer\(monitor='val/los'\): .*did you mean 'val/loss'"),
        ({"monitor": "val/loss", "mode": "up"}, r"^Checkpointer\(mode='up'\): must be 'min', 'max' or None"),
        (
            {"monitor": "val/odd"},
            r"Checkpointer\(monitor='val/odd'\): the name does not tell .* Write mode=",
        ),
        ({"every": "10ba"}, "st"),
        ({"on_error": "ignore"}, r"on_error='ignore'\): must be 'raise' or 'warn'"),
        ({"folder": "/tmp"}, "must be a folder inside the run's folder"),
        ({"folder": "../x"}, "must be a folder inside the run's folder"),
        ({"folder": ""}, "must be a folder inside the run's folder"),
        ({"folder": "."}, "must be a folder inside the run's folder"),
        ({"folder": "checkpoints/best"}, "holds nothing but checkpoints"),
    ]
    assert badly_refused(rows, hl.HooklineError) == []


def test_a_name_or_a_folder_that_cannot_work_is_refused_when_the_callback_is_made() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"name": "{step:zz}"}, "cannot be filled in"),
        ({"name": "{steps}-{step}"}, r"cannot be filled in \('steps'\)"),
        ({"name": "{step"}, "cannot be filled in"),
        ({"name": "{}-{step}"}, "cannot be filled in"),
        ({"name": "{step}-{val/loss:d}"}, "cannot be filled in"),
        ({"name": "{step}/{epoch}"}, "it contains a '/'"),
        ({"name": ".{step}"}, "starts with a dot"),
        ({"folder": "media"}, "folder=.*: Hookline keeps other files"),
        ({"folder": "media/best"}, "folder=.*: Hookline keeps other files"),
        ({"folder": "./spikes"}, "folder=.*: Hookline keeps other files"),
    ]
    assert badly_refused(rows, ArgumentError) == []


def badly_refused(rows: list[tuple[dict[str, Any], str]], kind: type[Exception]) -> list[Any]:
    """The rows whose arguments are accepted, or refused with another error or message."""
    found: list[Any] = []
    for arguments, why in rows:
        try:
            hl.Checkpointer(**arguments)
        except Exception as error:
            if not (isinstance(error, kind) and re.search(why, str(error))):
                found.append((arguments, why, error))
        else:
            found.append((arguments, why, "accepted"))
    return found


def test_a_monitor_that_keeps_all_has_a_best_one(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer(monitor="val/score", mode="min", keep_last=None)
    result = fit(checkpointer, Values(1, 2), folder=tmp_path, val=tiny_data(1))
    assert result.best_checkpoint == tmp_path / "checkpoints" / "step-00000004"


def test_a_run_without_a_folder_is_told_that_it_cannot_save() -> None:
    with pytest.raises(SetupError, match=r"folder=False.*give it a folder"):
        fit(hl.Checkpointer())  # type: ignore[arg-type]
    trainer = Trainer(folder=False, callbacks=[hl.Checkpointer()])
    assert trainer.evaluate(TinyModel(), tiny_data(1), loss=CE)


def test_a_class_in_place_of_an_instance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match="Checkpointer"):
        fit(hl.Checkpointer, folder=tmp_path)


def test_the_name_of_a_metric_says_which_is_better() -> None:
    """One who writes monitor="val/acc" must not be left with the worst checkpoint."""
    assert hl.Checkpointer(monitor="val/acc").plan.mode == "max"
    assert hl.Checkpointer(monitor="val/loss").plan.mode == "min"
    assert hl.Checkpointer(monitor="val/acc", mode="min").plan.mode == "min"
