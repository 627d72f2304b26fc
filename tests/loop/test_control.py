"""Requests of other processes: what they do to a run, what is recorded, and what a resume repeats."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hookline as hl
from hookline.errors import CheckpointError, RegistrationError
from hookline.loop import Loop
from hookline.records.control import ControlRequest
from hookline.records.run_file import ControlEntry, RunFile
from hookline.testing import TinyModel, tiny_data
from tests.support import (
    CE,
    ask_from_outside,
    at_step,
    crash_at,
    fit,
    json_lines,
    same_tensors,
    saved_steps,
    sgd,
    state_of,
    wrong_messages,
)

STEPS = 4
"""Steps per epoch."""


def ask(step: int, command: str, hook: str = "train_step_end", **settings: Any) -> hl.Callback:
    """Another process asks for something during this step."""
    return at_step(step, lambda run: ask_from_outside(run, command, **settings), hook)


def requests_of(folder: Path) -> tuple[ControlEntry, ...]:
    return RunFile.read(folder).control


def timeline(folder: Path, name: str) -> list[tuple[int, str]]:
    return [(row["step"], row["text"]) for row in json_lines(folder / "events.jsonl") if row["name"] == name]


def break_checkpoints(run: Any) -> None:
    """Put a file where the checkpoints are to be written."""
    shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
    (run.folder / "checkpoints").touch()


def rates(*callbacks: object, steps: int = 24, **options: Any) -> list[float]:
    """The learning rate of each step."""
    seen: list[float] = []
    note = hl.LambdaCallback(on_train_step_start=lambda run: seen.append(run.optimizers["SGD"].param_groups[0]["lr"]))
    fit(*callbacks, note, max_duration=f"{steps}st", **options)
    return [float(rate) for rate in seen]


# -- what a request does ------------------------------------------------------------------------------


def test_each_command_takes_effect_at_the_end_of_its_step(tmp_path: Path) -> None:
    asked = [ask(1, "save"), ask(2, "eval"), ask(5, "stop")]
    result = fit(*asked, val=tiny_data(1), folder=tmp_path / "run", eval_every=None, max_duration="9ep")
    assert (result.clock.step, result.stop_reason) == (5, "hookline stop")
    assert [step for step, _ in timeline(tmp_path / "run", "checkpoint")] == [1]
    assert [step for step, _ in timeline(tmp_path / "run", "eval")] == [3]
    assert [(entry.command, entry.step, entry.refused) for entry in requests_of(tmp_path / "run")] == [
        ("save", 1, ""),
        ("eval", 2, ""),
        ("stop", 5, ""),
    ]


def test_a_request_is_in_the_timeline_with_who_asked(tmp_path: Path) -> None:
    result = fit(ask(3, "set", max_duration="6st"), folder=tmp_path / "run")
    by = requests_of(tmp_path / "run")[0].by
    assert result.clock.step == 6
    assert timeline(tmp_path / "run", "control") == [(3, f"set max_duration=6st (by {by})")]
    assert RunFile.read(tmp_path / "run").settings["max_duration"] == "6st"


def test_a_custom_loop_does_what_is_asked_for(tmp_path: Path) -> None:
    model, evaluated = TinyModel(), []
    asked = [ask(2, "eval"), ask(4, "set", lr=0.01), ask(6, "stop")]
    with Loop(model, sgd, callbacks=asked, max_duration="9ep", folder=tmp_path / "run", device="cpu") as loop:
        for x, y in loop.batches(tiny_data(STEPS)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                evaluated.append(loop.run.clock.step)
                for x, y in loop.eval_batches(tiny_data(1)):
                    loop.run.log({"loss": CE(model(x), y)})
    assert evaluated[0] == 3
    assert loop.run.clock.step == 6
    assert [entry.refused for entry in requests_of(tmp_path / "run")] == ["", "", ""]


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "lambda": lambda its: lr_scheduler.LambdaLR(its, lambda step: 1 / (1 + step)),
    "multiplicative": lambda its: lr_scheduler.MultiplicativeLR(its, lambda step: 0.9),
    "step": lambda its: lr_scheduler.StepLR(its, 5),
    "multistep": lambda its: lr_scheduler.MultiStepLR(its, [4, 9, 14]),
    "exponential": lambda its: lr_scheduler.ExponentialLR(its, 0.9),
    "linear": lambda its: lr_scheduler.LinearLR(its, 0.5, total_iters=15),
    "constant": lambda its: lr_scheduler.ConstantLR(its, 0.5, total_iters=12),
    "polynomial": lambda its: lr_scheduler.PolynomialLR(its, 24),
    "cosine": lambda its: lr_scheduler.CosineAnnealingLR(its, 24),
    "restarts": lambda its: lr_scheduler.CosineAnnealingWarmRestarts(its, 6),
    "cyclic": lambda its: lr_scheduler.CyclicLR(its, 0.01, 0.1, 5),
    "one cycle": lambda its: lr_scheduler.OneCycleLR(its, 0.1, total_steps=25),
    "sequential": lambda its: lr_scheduler.SequentialLR(
        its, [lr_scheduler.LinearLR(its, 0.5, total_iters=4), lr_scheduler.CosineAnnealingLR(its, 20)], [4]
    ),
    "chained": lambda its: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(its, 0.5, total_iters=9), lr_scheduler.ExponentialLR(its, 0.9)]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_learning_rate_scales_the_rest_of_its_schedule(tmp_path: Path, schedule: str) -> None:
    """Otherwise the next step of the scheduler would silently undo the request."""
    scheduler = None if schedule == "none" else SCHEDULES[schedule]
    before = rates(scheduler=scheduler)
    after = rates(ask(7, "set", lr=before[7] / 4), scheduler=scheduler, folder=tmp_path / "run")
    assert after == pytest.approx([*before[:7], *(rate / 4 for rate in before[7:])])


def test_the_learning_rates_of_other_groups_keep_their_ratio(tmp_path: Path) -> None:
    def groups(parameters: Any) -> torch.optim.SGD:
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": others, "lr": 0.4}])

    result = fit(ask(2, "set", lr=0.05), optimizer=groups, folder=tmp_path / "run")
    assert result.clock.step == 8
    after: list[float] = []
    note = at_step(8, lambda run: after.extend(group["lr"] for group in run.optimizers["SGD"].param_groups))
    fit(ask(2, "set", lr=0.05), note, optimizer=groups, folder=tmp_path / "other")
    assert after == pytest.approx([0.05, 0.2])


def test_the_patience_of_a_callback_changes(tmp_path: Path) -> None:
    stopper = partial(hl.EarlyStopping, "val/loss", min_delta=100.0, patience=2)
    options: dict[str, Any] = {"val": tiny_data(1), "max_duration": "9ep"}
    assert fit(stopper(), **options).clock.epoch == 3
    longer = fit(ask(5, "set", patience=4), stopper(), **options, folder=tmp_path / "a")
    assert longer.clock.epoch == 5
    in_steps = fit(ask(5, "set", **{"EarlyStopping.patience": "6ep"}), stopper(), **options, folder=tmp_path / "b")
    assert in_steps.clock.epoch == 7
    assert requests_of(tmp_path / "b")[0].before == {"EarlyStopping.patience": 2}


def test_the_settings_of_a_run_are_listed_with_their_values(tmp_path: Path) -> None:
    fit(hl.EarlyStopping("train/loss", decide_at="epoch"), hl.GradientClip(value=2.0), folder=tmp_path / "run")
    live = RunFile.read(tmp_path / "run").live
    assert {
        "lr": 0.1,
        "max_duration": "2ep",
        "EarlyStopping.patience": 3,
        "GradientClip.value": 2.0,
    }.items() <= live.items()


@pytest.mark.parametrize("background", [False, True])
def test_a_save_is_reported_when_the_checkpoint_is_there(tmp_path: Path, background: bool) -> None:
    """Otherwise ``hookline save RUN && cp -r …`` copies nothing, or half of it."""
    seen: list[tuple[str, int, list[int]]] = []

    def look(what: str) -> Callable[[Any], None]:
        return lambda run: seen.append((what, len(requests_of(run.folder)), saved_steps(run.folder)))

    hooks = hl.LambdaCallback(on_checkpoint_save=look("save"), on_fit_end=look("end"))
    saver = hl.Checkpointer(every="100st", background=background, keep_last=None)
    asked = [ask(3, "save"), at_step(4, look("next"), "train_step_start"), ask(8, "save")]
    fit(saver, hooks, *asked, folder=tmp_path / "run")
    # The save at the last step comes after training.
    assert seen == [("save", 0, []), ("next", 1, [3]), ("end", 1, [3]), ("save", 1, [3])]
    assert [(entry.step, entry.refused) for entry in requests_of(tmp_path / "run")] == [(3, ""), (8, "")]
    assert saved_steps(tmp_path / "run") == [3, 8]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_save_that_fails_is_not_reported_as_done(tmp_path: Path, on_error: str, background: bool) -> None:
    saver = hl.Checkpointer(every="100st", background=background, on_error=on_error, at_end=False)
    broken = at_step(3, break_checkpoints)
    with pytest.raises(CheckpointError) if on_error == "raise" else nullcontext():
        fit(saver, broken, ask(3, "save"), folder=tmp_path / "run", max_duration="5st")
    refused = requests_of(tmp_path / "run")[0].refused
    assert refused == "no checkpoint of this step was written. The run has logged the reason."


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"patience": -1}, "EarlyStopping(patience=-1): must be >= 0, or a duration such as '2ep'."),
        ({"min_delta": "much"}, "EarlyStopping(min_delta='much'): must be a number."),
        ({"lr": -0.1}, "lr=-0.1: must be a number above 0, such as 1e-4."),
        ({"lr": "fast"}, "lr='fast': must be a number above 0, such as 1e-4."),
        ({"max_duration": "0.5dur"}, "'dur' is a fraction of max_duration itself"),
        ({"max_duration": "long"}, "max_duration='long': "),
        ({"patiance": 3}, "patiance: this run has no such setting. Did you mean patience?"),
        ({"mode": "max"}, "mode: this run has no such setting."),
        ({"max_spikes": 3, "norm": 0}, "GradientClip(norm=0)"),
        ({"value": 1.0}, "GradientClip(norm=1.0, value=1.0): needs one of them"),
    ],
)
def test_an_invalid_value_changes_nothing_and_training_continues(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    """The constructor checks values. One that is wrong refuses the whole request."""
    stopper, guard, clip = hl.EarlyStopping(min_delta=100.0), hl.SpikeGuard(), hl.GradientClip(1.0)
    asked = ask(3, "set", **{"divergence_threshold": 50.0, **settings})
    result = fit(asked, stopper, guard, clip, val=tiny_data(1), folder=tmp_path / "run")
    assert result.clock.step == 8
    assert why in requests_of(tmp_path / "run")[0].refused
    assert why in timeline(tmp_path / "run", "control")[0][1]
    assert (stopper.patience, stopper.divergence_threshold, guard.max_spikes, clip.norm) == (3, None, 20, 1.0)


def test_a_constructor_that_fails_in_its_own_way_refuses_the_request(tmp_path: Path) -> None:
    class Mine(hl.Callback):
        settings = ("size",)

        def __init__(self, data: Any, size: int = 1) -> None:
            self.size = 10 // size

    result = fit(Mine(object(), size=5), ask(3, "set", size=0), ask(5, "set", size=2), folder=tmp_path / "run")
    assert result.clock.step == 8
    first, second = requests_of(tmp_path / "run")
    assert first.refused == "Mine(size=0): integer division or modulo by zero"
    assert (second.refused, second.before) == ("", {"Mine.size": 2})
    assert RunFile.read(tmp_path / "run").live["Mine.size"] == 5


def test_a_name_that_two_callbacks_have_must_be_written_in_full(tmp_path: Path) -> None:
    one, other = hl.EarlyStopping(patience=30), hl.StopAtThreshold("val/loss", -9.0, patience=40)
    asked = [ask(2, "set", patience=50), ask(3, "set", **{"StopAtThreshold.patience": 60})]
    fit(one, other, *asked, val=tiny_data(1), folder=tmp_path / "run")
    assert "Write EarlyStopping.patience or StopAtThreshold.patience" in requests_of(tmp_path / "run")[0].refused
    assert (one.patience, other.patience) == (30, 60)


def test_an_evaluation_without_data_is_refused(tmp_path: Path) -> None:
    fit(ask(3, "eval"), folder=tmp_path / "run")
    assert requests_of(tmp_path / "run")[0].refused.startswith("there is nothing to evaluate on")


def test_an_evaluation_in_a_custom_loop_that_does_not_evaluate_is_refused(tmp_path: Path) -> None:
    """It would be reported as done, and nobody would make it."""
    model, asked = TinyModel(), [ask(2, "eval")]
    with Loop(model, sgd, callbacks=asked, max_duration="4st", folder=tmp_path / "run", device="cpu") as loop:
        for x, y in loop.batches(tiny_data(STEPS)):
            loop.backward(CE(model(x), y))
            loop.step()
    refused = requests_of(tmp_path / "run")[0].refused
    assert refused == "the loop has not read loop.eval_due so far. Evaluate in it whenever loop.eval_due is true."


@pytest.mark.parametrize("also", [None, "stop"])
def test_an_evaluation_is_refused_at_the_step_at_which_training_ends(tmp_path: Path, also: str | None) -> None:
    """Also if the request to stop comes after it: there is no next step to evaluate at."""
    model, step = TinyModel(), 3 if also else 6
    asked = [ask(step, "eval"), *([ask(step, also)] if also else [])]
    with Loop(model, sgd, callbacks=asked, max_duration="6st", folder=tmp_path / "run", device="cpu") as loop:
        for x, y in loop.batches(tiny_data(STEPS)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                for x, y in loop.eval_batches(tiny_data(1)):
                    loop.run.log({"loss": CE(model(x), y)})
    assert loop.run.clock.step == step
    entry = next(its for its in requests_of(tmp_path / "run") if its.command == "eval")
    assert entry.refused == "training ends at this step, and an evaluation would come at the next one."


def test_a_request_after_training_is_refused(tmp_path: Path) -> None:
    fit(ask(8, "stop", "teardown"), folder=tmp_path / "run")
    assert requests_of(tmp_path / "run")[0].refused == "the run ended before it took the request"
    assert not (tmp_path / "run" / "control").exists()


def test_a_request_to_an_earlier_run_does_not_stop_the_next_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        train(tmp_path / "run", crash_at(5))
    ControlRequest.new("stop").write(tmp_path / "run")
    result, _ = train(tmp_path / "run", at_step(6, ask_nothing), resume=True)
    assert result.clock.epoch == 4
    assert "an earlier run in this folder ended" in requests_of(tmp_path / "run")[0].refused


def ask_nothing(run: Any) -> None:
    run.loop.engine.requests.ask_control()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def plant(run: Any) -> None:
        path = ControlRequest.new("stop").write(run.folder)
        os.chown(path, 65534, 65534)
        ask_nothing(run)

    assert fit(at_step(3, plant), folder=tmp_path / "run").clock.step == 8
    assert requests_of(tmp_path / "run") == ()
    assert "who does not own the run" in caplog.text


@pytest.mark.parametrize("text", ["", "[", "[]", '{"command": "rm"}', '{"command": "set", "settings": {"lr": [1]}}'])
def test_a_file_that_is_no_request_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    def plant(run: Any) -> None:
        ControlRequest.new("stop").write(run.folder).write_text(text)
        ask_nothing(run)

    assert fit(at_step(3, plant), folder=tmp_path / "run").clock.step == 8
    assert "is not a request" in caplog.text


def test_settings_that_cannot_work_are_refused_when_the_callback_is_registered() -> None:
    def with_settings(*names: str, depends: tuple[str, ...] = ()) -> Callable[[], object]:
        class Mine(hl.Callback):
            settings = names
            state_depends_on = depends

            def __init__(self, kept: int = 1, lost: int = 2) -> None:
                self.kept = kept

        return lambda: fit(Mine())

    class Text(hl.Callback):
        settings = "patience"  # type: ignore[assignment]

    rows: list[tuple[object, Callable[[], object], str]] = [
        ("a string", lambda: fit(Text()), "Text.settings = 'patience': must be a tuple"),
        ("no argument", with_settings("other"), "Mine.settings lists 'other'.*Store the argument as self.other"),
        ("no attribute", with_settings("kept", "lost"), "Mine.settings lists 'lost'"),
        ("identity", with_settings("kept", depends=("kept",)), "lists 'kept', which gives the saved state its meaning"),
    ]
    assert not wrong_messages(RegistrationError, rows)


# -- resume and rollback ------------------------------------------------------------------------------


def train(folder: Path, *callbacks: object, resume: bool | Path = False, **options: Any) -> tuple[Any, Any]:
    """Train with a schedule, clipping and requests at three steps."""
    torch.manual_seed(0)
    model = TinyModel()
    given = {"max_duration": "4ep", **options}
    result = fit(
        hl.GradientClip(0.5),
        hl.Checkpointer(every="3st", keep_last=None),
        *callbacks,
        model=model,
        folder=folder,
        resume="auto" if resume is True else resume or None,
        scheduler=lambda its: lr_scheduler.CosineAnnealingLR(its, 40),
        **given,
    )
    return result, state_of(model)


REQUESTS = (
    partial(ask, 4, "set", lr=0.02),
    partial(ask, 5, "set", norm=0.01, max_duration="5ep"),
    partial(ask, 8, "set", norm=0.02),
    partial(ask, 8, "set", lr=0.3),
)


@pytest.mark.parametrize("killed_at", [5, 7, 8, 11])
def test_a_resume_repeats_settings_bitwise(tmp_path: Path, killed_at: int) -> None:
    """Also those after the checkpoint, at their steps."""
    _, wanted = train(tmp_path / "whole", *(make() for make in REQUESTS))
    asked = [make() for make in REQUESTS]
    with pytest.raises(RuntimeError, match="planted"):
        train(tmp_path / "run", *asked, crash_at(killed_at, "step_settled"))
    late = [make() for make in REQUESTS if make.args[0] >= killed_at]
    result, found = train(tmp_path / "run", *late, resume=True)
    assert result.clock.epoch == 5
    assert same_tensors(found, wanted)
    done = [(entry.step, entry.settings) for entry in requests_of(tmp_path / "run") if not entry.refused]
    assert done == [(entry.step, entry.settings) for entry in requests_of(tmp_path / "whole")]


def test_a_value_that_the_script_has_changed_since_is_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        train(tmp_path / "run", ask(2, "set", max_duration="2ep"), crash_at(5))
    result, _ = train(tmp_path / "run", resume=True, max_duration="3ep")
    assert result.clock.epoch == 3
    assert "max_duration=2ep of step 2 is not set again: it replaced 4ep, and the script now gives 3ep" in caplog.text


def test_a_later_request_wins_over_one_that_waits_for_its_step(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        train(tmp_path / "run", ask(5, "set", max_duration="2ep"), crash_at(5, "step_settled"))
    result, _ = train(tmp_path / "run", ask(4, "set", max_duration="3ep"), resume=True)
    assert result.clock.epoch == 3


def test_a_rollback_keeps_settings(tmp_path: Path) -> None:
    """The snapshot holds the learning rate from before the request."""
    folder, seen = tmp_path / "run", []

    def act(run: Any) -> None:
        seen.append((run.clock.step, run.optimizers["SGD"].param_groups[0]["lr"]))
        if len(seen) == 2:
            seen.append(run.snapshot())
        if len(seen) == 5:  # Step 4.
            ask_from_outside(run, "set", lr=0.02, max_duration="3ep")
        if len(seen) == 7:  # Step 6.
            run.roll_back(seen[2])

    fit(hl.LambdaCallback(on_train_step_end=act), folder=folder, max_duration="5ep")
    assert seen[7:] == [(step, 0.02) for step in range(3, 9)]
    entries = requests_of(folder)
    assert [(entry.step, entry.undone) for entry in entries] == [(4, True), (2, False)]
    assert entries[0].settings == entries[1].settings
    assert entries[1].before["max_duration"] == "5ep"


class Back(hl.Callback):
    """Takes a snapshot after step 4, and goes back to it once, after step 8."""

    state = ("kept", "is_back")

    def __init__(self) -> None:
        self.kept: Any = None
        self.is_back = False

    def on_step_settled(self, run: Any) -> None:
        if run.clock.step == 4 and self.kept is None:
            self.kept = run.snapshot()
        if run.clock.step == 8 and not self.is_back:
            self.is_back = True
            run.roll_back(self.kept)


@pytest.mark.parametrize("name", ["step-00000003", "step-00000004", "step-00000007", "step-00000005-g1"])
@pytest.mark.parametrize("settings", [{"lr": 0.02}, {"norm": 0.01, "max_duration": "5ep"}], ids=" ".join)
def test_a_resume_before_a_rollback_sets_values_at_their_first_step(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    """And after the rollback at the step to which the run went back. So the run is equal in every bit."""
    asked: list[int] = []

    def act(run: Any) -> None:
        if run.clock.step == 6 and not asked:
            asked.append(6)
            ask_from_outside(run, "set", **settings)

    each = hl.Checkpointer(every="1st", keep_last=None, folder="each")
    person = hl.LambdaCallback(on_train_step_end=act)
    _, wanted = train(tmp_path / "run", each, Back(), person)
    whole = requests_of(tmp_path / "run")
    assert [(entry.step, entry.undone) for entry in whole] == [(6, True), (4, False)]
    options: dict[str, Any] = {"resume": tmp_path / "run" / "each" / name}
    each = hl.Checkpointer(every="1st", keep_last=None, folder="each")
    result, found = train(tmp_path / "run", each, Back(), **options)
    assert result.clock.epoch == (5 if "max_duration" in settings else 4)
    assert same_tensors(found, wanted)
    assert [(entry.step, entry.undone) for entry in requests_of(tmp_path / "run")] == [(6, True), (4, False)]


def test_an_optimizer_without_a_learning_rate_trains(tmp_path: Path) -> None:
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.01 * parameter.grad.sign()

    fit(optimizer=Signs, max_duration="1st", folder=tmp_path)
    assert "lr" not in RunFile.read(tmp_path).live
