"""A run resumes with callbacks that have other options than before: which one gets which saved state."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import CheckpointMismatchError, RegistrationError
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, same_tensors


class Scores(hl.Callback):
    """Logs one value of ``val/score`` after each evaluation."""

    writes = ("val/score", "val/other")

    def __init__(self, values: Any) -> None:
        self.values = tuple(values)

    def on_eval_end(self, run: Any) -> None:
        run.log({"val/score": self.values[run.clock.epoch - 1], "val/other": 100.0}, reduce="last")


SCORES = Scores((5.0, 3.0, 4.0, 4.5, 4.6, 4.7, 4.8, 4.9))


class Remembering(hl.Callback):
    state = ("epochs",)

    def __init__(self, label: str = "a", size: int = 1) -> None:
        self.label = label
        self.epochs: list[int] = []

    def on_epoch_end(self, run: Any) -> None:
        self.epochs = [*self.epochs, run.clock.epoch]


class Meaning(Remembering):
    state_depends_on = ("label",)


class LeftError(Exception):
    """How a run is left here."""


def fit_epochs(folder: Path, *callbacks: Any, epochs: int = 2, model: nn.Module | None = None) -> Any:
    """Resume where there is a checkpoint, and leave after ``epochs``; the result, if it comes to its end before."""

    @hl.on("train_step_start")
    def leave(run: Any) -> None:
        if run.clock.epoch == epochs:
            raise LeftError

    every = [*callbacks, leave, hl.Checkpointer(), hl.ProgressBar(style=None)]
    options: Any = {"train": tiny_data(3), "val": tiny_data(1), "max_duration": "8ep", "resume": "auto"}
    with suppress(LeftError):
        return fit(*every, model=model, folder=folder, **options)


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [text for text in caplog.messages if all(word in text for word in words)]


# -- the same callback, with new options -----------------------------------------------------------


def test_early_stopping_keeps_its_best_value_when_patience_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit_epochs(tmp_path, SCORES, hl.EarlyStopping("val/score", mode="min"))
    caplog.clear()
    stopper = hl.EarlyStopping("val/score", mode="min", patience=5, min_delta=0.1)
    result = fit_epochs(tmp_path, SCORES, stopper, epochs=9)
    assert (stopper.best, result.clock.epoch, result.stopped_by) == (3.0, 7, "EarlyStopping")
    assert lines(caplog, "resumes with") == ["EarlyStopping resumes with patience=5 (was 3), min_delta=0.1 (was 0.0)"]


def test_save_best_does_not_overwrite_a_better_file(tmp_path: Path) -> None:
    fit_epochs(tmp_path, SCORES, hl.SaveBest("val/score", mode="min"))
    before = (tmp_path / "best.safetensors").read_bytes()
    fit_epochs(tmp_path, SCORES, hl.SaveBest("val/score", mode="min", min_delta=0.01), epochs=4)
    assert (tmp_path / "best.safetensors").read_bytes() == before


def test_a_patience_in_another_unit_counts_from_the_best_value(tmp_path: Path) -> None:
    fit_epochs(tmp_path, SCORES, hl.EarlyStopping("val/score", mode="min"), epochs=3)
    result = fit_epochs(tmp_path, SCORES, hl.EarlyStopping("val/score", mode="min", patience="3ep"), epochs=9)
    assert result.clock.epoch == 5  # the best value is that of epoch 2


def test_restore_best_that_was_switched_off_restores_nothing(tmp_path: Path) -> None:
    fit_epochs(tmp_path, SCORES, hl.EarlyStopping("val/score", mode="min", patience=2, restore_best=True))
    model, last = TinyModel(), {}

    @hl.on("train_step_end")
    def note(run: Any) -> None:
        last.update({name: value.clone() for name, value in model.state_dict().items()})

    result = fit_epochs(
        tmp_path, SCORES, note, hl.EarlyStopping("val/score", mode="min", patience=2), epochs=9, model=model
    )
    assert result.stopped_by == "EarlyStopping"
    assert same_tensors(model.state_dict(), last)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            lambda: hl.BackboneFinetuning(1, backbone="hidden"),
            lambda: hl.BackboneFinetuning(1, backbone="hidden", verbose=True),
        ),
        (lambda: hl.LRSchedule("cosine"), lambda: hl.LRSchedule("cosine", end=0.5)),
        (lambda: hl.LRSchedule("cosine"), lambda: hl.LRSchedule("linear", end=0.5)),
    ],
    ids=["BackboneFinetuning(verbose)", "LRSchedule(end)", "LRSchedule(schedule)"],
)
def test_callbacks_that_shape_the_optimizer_resume_with_other_options(tmp_path: Path, first: Any, second: Any) -> None:
    fit_epochs(tmp_path, first())
    assert fit_epochs(tmp_path, second(), epochs=9).clock.epoch == 8


@pytest.mark.parametrize(
    ("schedule", "before", "now", "expected"),
    [
        ("cosine", {}, {"end": 0.5}, 0.05),
        (torch.optim.lr_scheduler.StepLR, {"step_size": 3}, {"step_size": 3, "gamma": 1.0}, 0.1 * 0.1 * 0.1),
        ("plateau", {"monitor": "val/other", "patience": 50}, {"monitor": "val/other", "patience": 2}, 0.01),
    ],
    ids=["end", "gamma", "patience"],
)
def test_a_schedule_resumes_with_the_new_option_and_not_with_the_saved_one(
    tmp_path: Path, schedule: Any, before: Any, now: Any, expected: float
) -> None:
    mode = {"mode": "min"} if schedule == "plateau" else {}
    fit_epochs(tmp_path, SCORES, hl.LRSchedule(schedule, **before, **mode))
    rates: list[float] = []

    @hl.on("epoch_end")
    def look(run: Any) -> None:
        rates.append(run.optimizers["SGD"].param_groups[0]["lr"])

    fit_epochs(tmp_path, SCORES, hl.LRSchedule(schedule, **now, **mode), look, epochs=5 if mode else 9)
    assert rates[-1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "before", "now", "expected"),
    [
        ("cosine", {}, {"warmup": "2st"}, ["LRSchedule('cosine') continues with the saved plan, with total 24"]),
        (
            "cosine",
            {"end": 0.1},
            {"end": 0.5, "total": "5ep"},
            [
                "LRSchedule('cosine') resumes with end=0.5 (was 0.1)",
                "LRSchedule('cosine') continues with the saved plan, with total 24",
            ],
        ),
        (
            "one_cycle",
            {"pct_start": 0.3},
            {"pct_start": 0.4},
            ["LRSchedule('one_cycle') keeps pct_start=0.3 of the checkpoint"],
        ),
    ],
    ids=["warmup", "end and total", "pct_start"],
)
def test_a_schedule_logs_only_the_options_that_take_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, schedule: str, before: Any, now: Any, expected: list[str]
) -> None:
    fit_epochs(tmp_path, hl.LRSchedule(schedule, **before))
    caplog.clear()
    fit_epochs(tmp_path, hl.LRSchedule(schedule, **now), epochs=9)
    found = lines(caplog, "LRSchedule")
    assert [line.startswith(start) for line, start in zip(found, expected, strict=True)] == [True] * len(found), found


# -- arguments that give the state its meaning -------------------------------------------------------


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_best_loss_does_not_become_a_best_accuracy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    first, second = hl.EarlyStopping("val/score", mode="min"), hl.EarlyStopping("val/other", mode="max", patience=7)
    first.name = second.name = name
    fit_epochs(tmp_path, SCORES, first)
    caplog.clear()
    with caplog.at_level(logging.INFO, "hookline"):
        fit_epochs(tmp_path, SCORES, second, epochs=4)
    assert second.best == 100.0
    assert lines(caplog, name or "EarlyStopping") == [
        f"{name or 'EarlyStopping'} starts without its saved state: monitor is 'val/other' (was 'val/score'), "
        f"mode is 'max' (was 'min')"
    ], "one line"


def test_a_mode_that_is_written_out_is_the_same_mode(tmp_path: Path) -> None:
    fit_epochs(tmp_path, hl.EarlyStopping("val/loss"))
    stopper = hl.EarlyStopping(mode="min")
    fit_epochs(tmp_path, stopper, epochs=2)
    assert stopper.best is not None


def test_other_layers_are_frozen_after_the_resume(tmp_path: Path) -> None:
    fit_epochs(tmp_path, hl.Freeze("hidden"))
    model = TinyModel()
    frozen: list[list[str]] = []

    @hl.on("train_step_start", once=True)
    def look(run: Any) -> None:
        frozen.append([name for name, parameter in model.named_parameters() if not parameter.requires_grad])

    fit_epochs(tmp_path, hl.Freeze("out"), look, model=model, epochs=4)
    assert frozen == [["out.weight", "out.bias"]]


def test_two_of_a_class_are_told_apart_by_what_gives_their_state_its_meaning(tmp_path: Path) -> None:
    fit_epochs(tmp_path, Meaning("a", 1), Meaning("b", 1))
    new = Meaning("b", 2), Meaning("c", 2), Meaning("a", 2)
    fit_epochs(tmp_path, *new, epochs=3)
    assert [callback.epochs for callback in new] == [[1, 2, 3], [3], [1, 2, 3]]


def test_a_name_that_is_added_keeps_the_state(tmp_path: Path) -> None:
    fit_epochs(tmp_path, Remembering("a"), Remembering("b"))
    named = Remembering("a")
    named.name = "first"
    fit_epochs(tmp_path, named, Remembering("b"), epochs=3)
    assert named.epochs == [1, 2, 3]


# -- what cannot be told apart -----------------------------------------------------------------------


def test_an_ambiguity_is_an_error_that_asks_for_a_name_and_the_name_solves_it(tmp_path: Path) -> None:
    fit_epochs(tmp_path, Remembering("a"))
    with pytest.raises(CheckpointMismatchError, match=r"Remembering\(label='b'\).*Remembering\(label='c'\).*name"):
        fit_epochs(tmp_path, Remembering("b"), Remembering("c"))
    continued, new = Remembering("b"), Remembering("c")
    new.name = "new"
    fit_epochs(tmp_path, continued, new, epochs=3)
    assert (continued.epochs, new.epochs) == ([1, 2, 3], [3])


def test_secrets_are_not_in_the_record_of_the_arguments(tmp_path: Path) -> None:
    class Sender(Remembering):
        state_depends_on = ("token", "headers")

        def __init__(self, token: str = "") -> None:
            super().__init__()
            self.token, self.headers = token, {"api_key": token}

    fit_epochs(tmp_path, Sender("hunter2hunter2"))
    written = b"".join(path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    assert b"Sender" in written
    assert b"hunter2" not in written


def test_attributes_of_state_depends_on_must_exist(tmp_path: Path) -> None:
    class Wrong(Remembering):
        state_depends_on = ("lable",)

    with pytest.raises(RegistrationError, match=r"Wrong\.state_depends_on.*'lable'"):
        fit_epochs(tmp_path, Wrong())


# -- two callbacks that are made alike ---------------------------------------------------------------


def test_two_callbacks_without_state_need_no_name(tmp_path: Path) -> None:
    seen: list[int] = []

    class Stateless(hl.Callback):
        def on_epoch_end(self, run: Any) -> None:
            seen.append(run.clock.epoch)

    def note(run: Any) -> None:
        seen.append(-run.clock.epoch)

    fit_epochs(tmp_path, Stateless(), Stateless(), hl.on("epoch_end")(note), hl.on("epoch_end")(note))
    fit_epochs(tmp_path, Stateless(), Stateless(), hl.on("epoch_end")(note), hl.on("epoch_end")(note), epochs=3)
    assert seen == [1, 1, -1, -1, 2, 2, -2, -2, 3, 3, -3, -3]


def test_two_monitors_whose_state_is_a_position_need_no_name(tmp_path: Path) -> None:
    def callbacks() -> list[hl.Callback]:
        return [kind() for kind in (hl.LRMonitor, hl.SpeedMonitor, hl.ParameterMonitor, hl.StopOnNaN) for _ in range(2)]

    fit_epochs(tmp_path, *callbacks())
    result = fit_epochs(tmp_path, *callbacks(), epochs=9)
    assert result.history.steps("lr/SGD") == [3 * epoch for epoch in range(1, 9)]


def test_two_monitors_that_hold_a_module_are_asked_for_a_name(tmp_path: Path) -> None:
    class Probe(hl.LRMonitor):
        def on_setup(self, run: Any) -> None:
            super().on_setup(run)
            self.head = nn.Linear(3, 3)

    with pytest.raises(RegistrationError, match=r"two callbacks are both .*Probe\(\)"):
        fit_epochs(tmp_path, Probe(), Probe())


def test_two_callbacks_that_hold_a_module_are_asked_for_a_name_before_the_first_step(tmp_path: Path) -> None:
    class Probe(hl.Callback):
        def on_setup(self, run: Any) -> None:
            self.head = nn.Linear(3, 3)

        def on_train_step_start(self, run: Any) -> None:
            raise AssertionError("trained before it was refused")

    with pytest.raises(RegistrationError, match=r"two callbacks are both .*Probe\(\)"):
        fit_epochs(tmp_path, Probe(), Probe())


@pytest.fixture(autouse=True)
def _show_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="hookline")
