"""``run.json`` and the timeline: what was run, how it ended, and no secrets."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Loop, Trainer
from hookline.records import EventRow, MetricRow, from_json, to_json
from hookline.records.run_file import RunFile
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, fit, sgd, train_loop
from tests.support.inside import loader_settings, reached

short_fit = partial(fit, train=tiny_data(3))


def events(folder: Path) -> list[tuple[str, int]]:
    rows = [from_json(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(row.name, row.step) for row in rows if isinstance(row, EventRow)]


def fails(run: hl.Run) -> None:
    raise ValueError("no more")


def test_what_was_run_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1", "--token", "abc"])
    config = {"lr": 0.1, "layers": (1, 2), "path": tmp_path, "nan": float("nan"), "odd": object}
    short_fit(
        hl.EarlyStopping("train/loss"), folder=tmp_path, config=config, seed=3, name="digits/first", log_every="1st"
    )
    found = RunFile.read(tmp_path)
    assert (found.project, found.name, found.seed, found.entry_point) == ("digits", "first", 3, "fit")
    assert found.config["layers"] == [1, 2]
    assert found.config["path"] == str(tmp_path)
    assert found.config["nan"] == "nan"
    assert found.settings["log_every"] == "1st"
    assert found.settings["max_duration"] == "2ep"
    assert found.arguments == ("train.py", "--lr", "0.1", "--token", "[redacted]")
    assert [entry.name for entry in found.callbacks] == ["EarlyStopping"]
    assert found.model == {"class": "TinyModel", "parameters": 67, "trainable": 67}
    assert found.versions["torch"] == torch.__version__
    assert found.platform["device"] == "cpu"


def test_loss_and_optimizers_are_settings_as_they_were_made(tmp_path: Path) -> None:
    """Else two runs that differ in nothing but their learning rate are told to have no setting that differs."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.2)
    halved = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    Trainer(max_duration="3st", folder=tmp_path).fit(
        model, tiny_data(), loss=loss, optimizer=optimizer, scheduler=halved
    )
    for _ in range(2):
        found = RunFile.read(tmp_path).settings
        assert {"class": "CrossEntropyLoss", "label_smoothing": 0.1}.items() <= found["loss"].items()
        its = found["optimizers"]["AdamW"]
        assert (its["class"], its["lr"], its["weight_decay"], its["betas"]) == ("AdamW", 0.01, 0.2, [0.9, 0.999])
        assert "amsgrad" not in its
        model = TinyModel()
        again = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.2)
        resumed = Trainer(max_duration="3st", folder=tmp_path, resume="auto")
        resumed.fit(model, tiny_data(), loss=loss, optimizer=again, extend="1ep")


def test_a_loss_that_is_a_function_is_told_by_its_name(tmp_path: Path) -> None:
    loss = nn.functional.cross_entropy
    Trainer(max_duration="1st", folder=tmp_path).fit(TinyModel(), tiny_data(), loss=loss, optimizer=torch.optim.SGD)
    assert RunFile.read(tmp_path).settings["loss"] == "cross_entropy"


def test_the_callbacks_stand_in_the_order_in_which_they_run(tmp_path: Path) -> None:
    class Reads(hl.Callback):
        reads = ("train/x",)

    class Writes(hl.Callback):
        writes = ("train/x",)

        def on_train_step_end(self, run: hl.Run) -> None:
            run.log({"x": 1.0})

    short_fit(Reads(), Writes(), folder=tmp_path)
    names = [entry.name.rpartition(".")[2] for entry in RunFile.read(tmp_path).callbacks]
    assert names == ["Writes", "Reads"]


def test_the_commit_and_whether_files_were_changed_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    short_fit(folder=tmp_path / "outside")
    (code / "train.py").write_text("1")
    for command in (["init", "-q", "-b", "work"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    short_fit(folder=tmp_path / "clean")
    (code / "train.py").write_text("2")
    short_fit(folder=tmp_path / "dirty")
    assert RunFile.read(tmp_path / "outside").git is None
    clean, dirty = RunFile.read(tmp_path / "clean").git, RunFile.read(tmp_path / "dirty").git
    assert clean is not None
    assert dirty is not None
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (clean["commit"], clean["branch"], clean["dirty"]) == (head, "work", False)
    assert dirty["dirty"] is True


SECRETS = ["hunter2", "AKIA2E4QXJ5NPLVYT7KD", "ghp_" + "a1Bc9" * 7, "sk-" + "b7Qz3" * 8]


def test_no_secret_is_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In settings, arguments, texts, reasons and errors: every file of the folder is looked through."""
    password, aws, github, openai = SECRETS
    monkeypatch.setattr(sys, "argv", ["train.py", f"--password={password}", aws])

    class Tells(hl.Callback):
        def __init__(self, where: str) -> None:
            self.where = where

        def on_epoch_end(self, run: hl.Run) -> None:
            run.log_text("note", f"key is {openai}")
            run.log_table("t", [{"a": f"https://me:{password}@example.org"}])
            run.log_image("i", torch.rand(2, 2), caption=github)
            raise ValueError(f"cannot reach https://me:{password}@example.org/?token={github}")

    config = {
        "api_key": password,
        "nested": {"db": {"url": f"postgres://me:{password}@host/db", "pass": password}},
        "note": aws,
        "wandb": {"key": password},
        "env": f"PGPASSWORD={password}",
    }
    sinks = [hl.sinks.CSV(), hl.sinks.JSONL(tmp_path / "run" / "copy.jsonl")]
    with pytest.raises(ValueError, match="cannot reach"):
        hl.fit(
            TinyModel(), tiny_data(2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, max_duration="1ep",
            folder=tmp_path / "run", config=config, callbacks=[Tells(f"s3://{aws}@bucket")], sinks=sinks,
        )  # fmt: skip
    texts = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"run.json", "metrics.jsonl", "events.jsonl", "report.html"} <= {path.name for path in texts}
    found = [(path.name, secret) for path, text in texts.items() for secret in SECRETS if secret.encode() in text]
    assert found == []


def test_no_secret_of_a_callback_or_a_reason_is_written_in_a_checkpoint(tmp_path: Path) -> None:
    """Checkpoints are what is given to others; and with a new token the state is still found."""
    password, _, github, _ = SECRETS

    class Pushes(hl.Callback):
        state = ("pushed",)

        def __init__(self, token: str, place: str) -> None:
            self.pushed = 0

        def on_train_step_end(self, run: hl.Run) -> None:
            self.pushed += 1
            if run.clock.step == 1:
                run.stop(f"the hub says no to token={password}")

    def train(token: str, **options: Any) -> Pushes:
        pushes = Pushes(token, f"https://me:{password}@example.org")
        hl.fit(
            TinyModel(), tiny_data(2), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, max_duration="2ep",
            folder=tmp_path / "run", callbacks=[pushes, hl.Checkpointer(every="1st")], resume="auto", **options,
        )  # fmt: skip
        return pushes

    train(github)
    texts = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "state.json" in {path.name for path in texts}
    found = [(path.name, secret) for path, text in texts.items() for secret in SECRETS if secret.encode() in text]
    assert found == []
    assert train("another token", extend="1ep").pushed > 1


# -- how it ended --------------------------------------------------------------------------------


def test_a_run_that_is_finished_says_so(tmp_path: Path) -> None:
    short_fit(folder=tmp_path, val=tiny_data(1))
    session = RunFile.read(tmp_path).sessions[-1]
    assert (session.status, session.reason, session.last_step, session.last_epoch) == (
        "finished",
        "max_duration (2ep) reached",
        6,
        2,
    )
    assert events(tmp_path) == [("start", 0), ("eval", 3), ("eval", 6), ("end", 6)]


def test_a_run_that_was_stopped_says_by_whom_and_why(tmp_path: Path) -> None:
    short_fit(
        hl.LambdaCallback(on_train_step_end=lambda run: run.clock.step == 2 and run.stop("enough")), folder=tmp_path
    )
    session = RunFile.read(tmp_path).sessions[-1]
    assert (session.status, session.reason, session.stopped_by) == ("stopped", "enough", "LambdaCallback")
    assert events(tmp_path) == [("start", 0), ("stop", 2), ("end", 2)]


def test_a_run_that_failed_says_with_what(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no more"):
        short_fit(hl.on("train_step_end", at="2st")(fails), folder=tmp_path)
    session = RunFile.read(tmp_path).sessions[-1]
    assert (session.status, session.reason, session.last_step) == ("failed", "ValueError: no more", 2)
    assert events(tmp_path) == [("start", 0), ("exception", 2)]


@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_an_optimizer_that_is_made_otherwise_goes_on_as_it_was_which_is_said_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lr: float
) -> None:
    """Else a report shows, and two runs are compared by, a learning rate that was never used."""

    used: list[float] = []

    class Notes(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            used.append(run.optimizers["SGD"].param_groups[0]["lr"])
            if len(used) == 5:
                raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        short_fit(hl.Checkpointer("2st"), Notes(), folder=tmp_path, optimizer=partial(sgd, momentum=0.5))
    caplog.clear()
    short_fit(
        hl.Checkpointer("2st"), Notes(), folder=tmp_path, optimizer=partial(sgd, lr=lr, momentum=0.5), resume="auto"
    )
    assert used == [0.1] * 7
    assert RunFile.read(tmp_path).settings["optimizers"]["SGD"]["lr"] == 0.1
    said = [text for text in caplog.messages if "resumes with lr=0.1 from the checkpoint" in text]
    assert len(said) == (lr != 0.1)


def test_a_run_that_is_to_be_resumed_and_that_nobody_saves_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short_fit(folder=tmp_path / "a", resume="auto")
    assert "no callback saves this run" in caplog.text
    caplog.clear()
    short_fit(hl.Checkpointer(), folder=tmp_path / "b", resume="auto")
    assert "no callback saves this run" not in caplog.text


class UnprintableError(Exception):
    """As one that lost its attributes on the way out of a worker."""

    def __str__(self) -> str:
        raise AttributeError("detail")


def test_an_error_without_a_text_arrives_as_it_is_and_is_told(tmp_path: Path) -> None:
    def unprintable(run: hl.Run) -> None:
        raise UnprintableError

    with pytest.raises(UnprintableError):
        short_fit(hl.on("train_step_end", at="2st")(unprintable), folder=tmp_path)
    assert RunFile.read(tmp_path).sessions[-1].reason == "UnprintableError: (its __str__ raises AttributeError)"
    assert events(tmp_path) == [("start", 0), ("exception", 2)]


def test_an_optional_callback_whose_error_has_no_text_kills_no_run(tmp_path: Path) -> None:
    class Broken(hl.Callback):
        optional = True

        def on_train_step_end(self, run: hl.Run) -> None:
            raise UnprintableError

    result = short_fit(Broken(), folder=tmp_path)
    assert [str(failure).rpartition(": ")[2] for failure in result.failures] == ["(its __str__ raises AttributeError)"]
    (told,) = RunFile.read(tmp_path).sessions[-1].failures
    assert "UnprintableError" in told


def test_a_keyboard_interrupt_that_is_raised_is_no_failure(tmp_path: Path) -> None:
    def twice(run: hl.Run) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        short_fit(hl.on("train_step_end", at="2st")(twice), folder=tmp_path)
    session = RunFile.read(tmp_path).sessions[-1]
    assert (session.status, session.reason) == ("interrupted", "KeyboardInterrupt")


def test_an_interrupt_and_a_signal_are_told_apart(tmp_path: Path) -> None:
    short_fit(hl.on("train_step_end", at="2st")(lambda run: signal.raise_signal(signal.SIGINT)), folder=tmp_path / "a")
    with pytest.raises(hl.Preempted):
        short_fit(
            hl.on("train_step_end", at="2st")(lambda run: signal.raise_signal(signal.SIGTERM)), folder=tmp_path / "b"
        )
    assert [RunFile.read(tmp_path / name).status for name in "ab"] == ["interrupted", "preempted"]
    assert ("interrupt", 2) in events(tmp_path / "a")
    assert events(tmp_path / "b")[-2:] == [("checkpoint", 2), ("preempt", 2)]


def test_a_callback_that_was_switched_off_is_in_the_timeline_and_the_record(tmp_path: Path) -> None:
    class Broken(hl.Callback):
        optional = True

        def on_train_step_end(self, run: hl.Run) -> None:
            raise KeyError("lost")

    short_fit(Broken(), folder=tmp_path)
    assert "callback_disabled" in dict(events(tmp_path))
    (failure,) = RunFile.read(tmp_path).sessions[-1].failures
    assert "Broken" in failure
    assert "lost" in failure


def test_what_callbacks_cost_is_kept(tmp_path: Path) -> None:
    result = short_fit(hl.LambdaCallback(on_epoch_end=lambda run: sum(range(10_000))), folder=tmp_path)
    (cost,) = RunFile.read(tmp_path).sessions[-1].costs
    assert (cost.callback, cost.hook, cost.calls) == ("LambdaCallback", "on_epoch_end", 2)
    assert cost.seconds == pytest.approx(result.costs[0].seconds)


def test_the_time_of_a_slow_hook_is_that_of_its_callback_and_in_the_summary() -> None:
    slow = hl.LambdaCallback(on_epoch_end=lambda run: time.sleep(0.05))
    quick = hl.LambdaCallback(on_epoch_end=lambda run: None, on_fit_end=lambda run: None)
    slow.name, quick.name = "slow", "quick"
    result = short_fit(quick, slow)
    calls = {(row.callback, row.hook): row.calls for row in result.costs}
    assert calls == {("slow", "on_epoch_end"): 2, ("quick", "on_epoch_end"): 2, ("quick", "on_fit_end"): 1}
    (cost,) = [row for row in result.costs if row.callback == "slow"]
    assert 0.1 <= cost.seconds <= result.clock.seconds
    assert f"cost: slow.on_epoch_end: {cost.seconds * 1e3:.1f} ms in 2 calls" in result.summary()


class SlowlySaved(hl.Callback):
    """Its state takes 20 ms to collect, and its hook after each save 300 ms."""

    state = ("nothing",)
    nothing = 0

    def state_dict(self) -> dict[str, Any]:
        time.sleep(0.02)
        return super().state_dict()

    def on_checkpoint_saved(self, run: hl.Run) -> None:
        time.sleep(0.3)


@pytest.mark.parametrize("background", [False, True])
def test_the_time_of_saving_stands_beside_what_callbacks_cost_and_without_their_hooks(
    tmp_path: Path, background: bool
) -> None:
    began = time.perf_counter()
    result = short_fit(
        SlowlySaved(), hl.Checkpointer(every="3st", keep_last=None, background=background), folder=tmp_path
    )
    took = time.perf_counter() - began
    saves = len(list((tmp_path / "checkpoints").iterdir()))
    assert saves > 1
    (saving,) = [row for row in result.costs if row.callback == "(checkpoints)"]
    assert (saving.hook, saving.calls) == ("saving", saves)
    assert saving.seconds >= 0.02 * saves
    (hook,) = [row for row in result.costs if row.hook == "on_checkpoint_saved"]
    if not background:  # else one that is waited for is told of in the wait
        assert saving.seconds + hook.seconds < took
    assert f"cost: (checkpoints).saving: {saving.seconds * 1e3:.1f} ms in {saves} calls" in result.summary()
    assert any(cost.callback == "(checkpoints)" for cost in RunFile.read(tmp_path).sessions[-1].costs)


def test_a_run_that_saves_nothing_has_no_row_for_it(tmp_path: Path) -> None:
    assert not [row for row in short_fit(folder=tmp_path).costs if row.callback == "(checkpoints)"]


def test_each_resume_adds_a_session_and_the_timeline_keeps_what_really_happened(tmp_path: Path) -> None:
    def at_first(run: hl.Run) -> None:
        if run.clock.step == 4 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            fails(run)

    stop = hl.on("train_step_end")(at_first)
    with pytest.raises(ValueError, match="no more"):
        short_fit(hl.Checkpointer("3st"), stop, folder=tmp_path)
    short_fit(hl.Checkpointer("3st"), stop, folder=tmp_path, resume="auto")
    found = RunFile.read(tmp_path)
    assert [(s.status, s.first_step, s.last_step) for s in found.sessions] == [("failed", 0, 4), ("finished", 3, 6)]
    names = [name for name, _ in events(tmp_path)]
    assert names == ["start", "checkpoint", "exception", "resume", "checkpoint", "end"]


def killed(folder: Path, at: int) -> None:
    """Train in a process that is killed at this step."""

    def train() -> None:
        kill = at_step(at, lambda run: os.kill(os.getpid(), signal.SIGKILL))
        short_fit(kill, hl.Checkpointer("4st"), max_duration="4ep", folder=folder, log_every="1st", resume="auto")

    process = multiprocessing.get_context("fork").Process(target=train, daemon=True)
    process.start()
    process.join(timeout=200)
    assert process.exitcode == -signal.SIGKILL
    assert RunFile.read(folder).status == "running"


def test_a_run_that_was_killed_is_known_as_such_by_the_next_one(tmp_path: Path) -> None:
    """How far it came is read from its rows before the resume takes them back."""
    killed(tmp_path, 7)
    killed(tmp_path, 6)  # goes on from step 4
    short_fit(hl.Checkpointer("4st"), folder=tmp_path, resume="auto", max_duration="4ep", log_every="1st")
    first, second, third = RunFile.read(tmp_path).sessions
    assert [session.status for session in (first, second, third)] == ["killed", "killed", "finished"]
    assert "killed" in first.reason
    assert (first.first_step, first.last_step, first.last_epoch) == (0, 6, 2)
    assert (second.first_step, second.last_step) == (4, 5)
    assert first.seconds > 0
    assert [(name, step) for name, step in events(tmp_path) if name != "checkpoint"] == [
        ("start", 0), ("killed", 6), ("resume", 4), ("killed", 5), ("resume", 4), ("end", 12),
    ]  # fmt: skip


def test_a_run_that_was_killed_before_its_first_row_came_no_step_far(tmp_path: Path) -> None:
    killed(tmp_path, 1)
    short_fit(folder=tmp_path, resume="auto")
    first, second = RunFile.read(tmp_path).sessions
    assert (first.status, first.last_step, second.status) == ("killed", 0, "finished")
    assert events(tmp_path)[:3] == [("start", 0), ("killed", 0), ("start", 0)]


def test_steps_of_ones_own_do_not_tell_how_far_a_killed_run_came(tmp_path: Path) -> None:
    rows = [
        MetricRow("train/loss", 6, 1, 0.5, "step", 1.0),
        MetricRow("calibration/curve", 136_000, 1, 0.5, "step", 2.0),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    assert reached(tmp_path) == (6, 1, 2.0)


def test_a_second_fit_is_a_second_session_of_the_same_run(tmp_path: Path) -> None:
    trainer, model = Trainer(max_duration="1ep", folder=tmp_path), TinyModel()
    short_fit(trainer=trainer, model=model)
    short_fit(trainer=trainer, model=model, extend="1ep")
    assert [(s.first_step, s.last_step) for s in RunFile.read(tmp_path).sessions] == [(0, 3), (3, 6)]


def test_the_own_loop_writes_it_too(tmp_path: Path) -> None:
    train_loop(max_duration="1ep", folder=tmp_path)
    assert RunFile.read(tmp_path).status == "finished"


def test_what_writes_nothing_and_an_evaluation_have_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(max_duration="1ep", folder=False)
    trainer.fit(TinyModel(), tiny_data(1), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    Trainer().evaluate(TinyModel(), tiny_data(1), loss=nn.CrossEntropyLoss())
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_read_is_written_anew_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run.json").write_text("{torn")
    short_fit(folder=tmp_path)
    assert "run.json" in caplog.text
    assert json.loads((tmp_path / "run.json").read_text())["sessions"][0]["status"] == "finished"


def test_a_timeline_that_cannot_be_written_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events.jsonl").mkdir()
    assert short_fit(folder=tmp_path).clock.step == 6
    assert f"{tmp_path / 'events.jsonl'}: Is a directory (errno 21)" in caplog.text


def test_a_report_that_fails_does_not_fail_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Tells(Trainer):
        def when_written(self, folder: Path) -> None:
            raise RuntimeError("no ink")

    result = Tells(max_duration="1ep", folder=tmp_path).fit(
        TinyModel(), tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    assert result.clock.step == 3
    assert "no ink" in caplog.text


@pytest.mark.parametrize("failure", [OSError("no ink"), RuntimeError("no ink")], ids=repr)
def test_a_report_that_fails_after_a_run_that_failed_does_not_call_the_run_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    class Tells(Trainer):
        def when_written(self, folder: Path) -> None:
            raise failure

    crash = hl.LambdaCallback(on_train_step_end=lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Tells(max_duration="1ep", folder=tmp_path, callbacks=[crash]).fit(
            TinyModel(), tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
        )
    assert "the report of this run could not be" in caplog.text
    assert "no ink" in caplog.text
    assert "run is complete" not in caplog.text


def loader_of(batch_size: int) -> DataLoader[Any]:
    inputs, classes = (torch.cat(parts) for parts in zip(*tiny_data(), strict=True))
    return DataLoader(TensorDataset(inputs, classes), batch_size=batch_size, shuffle=True)


def settings_of(folder: Path, loader: Any, **given: Any) -> dict[str, Any]:
    model = given.pop("model", None) or TinyModel()
    given.setdefault("optimizer", torch.optim.SGD)
    Trainer(max_duration="2st", folder=folder).fit(model, loader, loss=nn.CrossEntropyLoss(), **given)
    return dict(RunFile.read(folder).settings)


def test_how_the_data_is_cut_is_a_setting(tmp_path: Path) -> None:
    """Else two runs that differ in nothing but their batch size are told to have no setting that differs."""
    small, large = (settings_of(tmp_path / str(size), loader_of(size))["loaders"]["train"] for size in (4, 8))
    assert small == {
        "dataset": "TensorDataset", "samples": 32, "batch_size": 4, "sampler": "RandomSampler", "num_workers": 0
    }  # fmt: skip
    assert large == {**small, "batch_size": 8}
    named = {"easy": loader_of(2), "hard": tiny_data(3)}
    found = settings_of(tmp_path / "val", tiny_data(), val=named)["loaders"]["val"]
    assert (found["easy"]["batch_size"], found["hard"]) == (2, {"class": "list", "batches": 3})
    endless = settings_of(tmp_path / "endless", iter(tiny_data()))
    assert endless["loaders"]["train"] == {"class": "list_iterator"}


def test_an_own_loop_has_its_data_among_its_settings_when_it_ends(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, max_duration="2st", folder=tmp_path) as loop:
        for inputs, classes in loop.batches(loader_of(4)):
            loop.backward(nn.functional.cross_entropy(model(inputs), classes))
            loop.step()
    assert RunFile.read(tmp_path).settings["loaders"]["train"]["batch_size"] == 4


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda its: torch.optim.lr_scheduler.StepLR(its, 5), {"StepLR": {"every": "1st", "step_size": 5}}),
        (
            lambda its: hl.Scheduler(torch.optim.lr_scheduler.MultiStepLR(its, [4, 2]), every="1ep"),
            {"MultiStepLR": {"every": "1ep", "milestones": [2, 4]}},
        ),
        (lambda its: torch.optim.lr_scheduler.OneCycleLR(its, 0.3, 100), {"OneCycleLR": {"max_lr": [0.3]}}),
        (
            lambda its: torch.optim.lr_scheduler.ReduceLROnPlateau(its, patience=7),
            {"ReduceLROnPlateau": {"monitor": "val/loss", "patience": 7}},
        ),
        (
            lambda its: torch.optim.lr_scheduler.SequentialLR(
                its, [torch.optim.lr_scheduler.LinearLR(its), torch.optim.lr_scheduler.ConstantLR(its)], [3]
            ),
            {"SequentialLR": {"milestones": [3]}},
        ),
    ],
    ids=["step", "steps by epoch", "one cycle", "plateau", "sequence"],
)
def test_a_schedule_that_was_given_is_a_setting(make: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"model": model, "optimizer": optimizer, "scheduler": make(optimizer), "val": tiny_data()}
    found = settings_of(tmp_path, tiny_data(), **given)["schedulers"]
    (name,) = expected
    assert expected[name].items() <= found[name].items()
    assert not {"last_epoch", "best", "base_lrs", "optimizer"} & found[name].keys()


def test_what_the_groups_of_an_optimizer_have_of_their_own_is_a_setting(tmp_path: Path) -> None:
    model = TinyModel()
    first, *others = model.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.01}, {"params": others}], lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)  # the rates are other ones before the first step
    found = settings_of(tmp_path, tiny_data(), model=model, optimizer=optimizer, scheduler=schedule)
    assert found["optimizers"]["SGD"]["groups"] == [{"lr": 0.01}, {}]
    assert found["optimizers"]["SGD"]["lr"] == 0.1


def test_a_loader_or_an_optimizer_that_cannot_be_told_ends_no_run(tmp_path: Path) -> None:
    class Own(DataLoader[Any]):
        """It has nothing of what torch's own class sets up."""

        def __init__(self) -> None: ...

        def __iter__(self) -> Any:
            return iter(tiny_data())

        def __len__(self) -> int:
            raise RuntimeError("not known yet")

    class Odd(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__([{"params": [one], "scale": torch.rand(2)} for one in parameters], lr=0.1)
            self.defaults["scale"] = torch.ones(2)

    class Data:
        def __iter__(self) -> Any:
            return iter(tiny_data())

        def __len__(self) -> int:
            raise TypeError("not known yet")

    found = settings_of(tmp_path, Data(), optimizer=Odd)
    assert found["loaders"]["train"]["class"].endswith("Data")
    assert all("scale" in group for group in found["optimizers"]["Odd"]["groups"])
    assert loader_settings(Own())["class"].endswith("Own")


def test_planted_secrets_reach_no_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the config, on the command line, in a text, in a table."""
    config = {
        "command": ["train.py", "--token", "hunter2-a"],
        "pair": ("password", "hunter2-b"),
        "env": [{"name": "HF_TOKEN", "value": "hunter2-c"}],
        "creds": "hunter2-d",
        "wandb": "0123456789abcdef0123456789abcdef01234567",
    }
    monkeypatch.setattr(sys, "argv", ["train.py", "--psk", "hunter2-e"])

    class Logs(hl.Callback):
        def on_fit_start(self, run: Any) -> None:
            run.log_text("command", "curl -u me:hunter2-f https://example.org")
            run.log_table("users", [{"user": "me", "password": "hunter2-g"}])
            print("sent Basic " + b64encode(b"me:hunter2-h").decode())

    short_fit(Logs(), hl.LogFile(), folder=tmp_path, config=config)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[redacted]" in written
    for secret in (b"hunter2", b"0123456789abcdef0123456789abcdef01234567", b64encode(b"me:hunter2-h")):
        assert secret not in written
