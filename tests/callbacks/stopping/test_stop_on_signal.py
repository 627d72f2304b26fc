"""``StopOnSignal``: more signals than SIGTERM, and what is done when one of them has come."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import ArgumentError
from hookline.testing import start_script, tiny_data
from tests.support import at_step, crash_at, fit, press_ctrl_c, same_tensors, saved_steps, weights_of

Act = Callable[[Any], object]


class At(hl.Callback):
    """Notes the last events, and does something at one of them, at one step."""

    def __init__(self, event: str, act: Act, step: int = 3) -> None:
        self.event, self.act, self.step = event, act, step
        self.seen: list[str] = []

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)
        if event == self.event and run.clock.step == self.step:
            self.act(run)


def press(*numbers: int) -> Act:
    """What the system does: it sends signals to this process."""

    def act(run: Any) -> None:
        for number in numbers:
            signal.raise_signal(number)

    return act


def nobody_listens(number: int, frame: Any) -> None:
    """In place of the system's own way, which would end the runner of the tests."""


@pytest.fixture(autouse=True)
def same_handlers() -> Iterator[None]:
    """Whatever happens in a run, the handlers are those from before it."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    before = {number: signal.signal(number, nobody_listens) for number in numbers}
    yield
    left = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert left == dict.fromkeys(numbers, nobody_listens)


# -- which signals -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM])
def test_each_signal_that_was_named_saves_and_leaves_with_its_own_exit_code(tmp_path: Path, number: int) -> None:
    at = At("train_step_end", press(number))
    with pytest.raises(hl.Preempted) as caught:
        fit(hl.StopOnSignal("SIGUSR1", signal.SIGUSR2, "SIGHUP"), at, folder=tmp_path / "run")
    left: Any = caught.value
    assert (left.signal, left.code) == (number, 128 + number)
    assert left.checkpoint == tmp_path / "run" / "checkpoints" / "step-00000003"
    assert (left.result.clock.step, left.result.stop_reason) == (3, signal.Signals(number).name)
    assert at.seen[-4:] == ["preempt", "checkpoint_save", "checkpoint_saved", "teardown"]
    went_on, whole = fit(folder=tmp_path / "run", resume="auto"), fit()
    assert same_tensors(weights_of(went_on.model), weights_of(whole.model))


def test_sigterm_is_listened_to_without_it(tmp_path: Path) -> None:
    with pytest.raises(hl.Preempted):
        fit(At("train_step_end", press(signal.SIGTERM)), folder=tmp_path)
    assert saved_steps(tmp_path) == [3]


def test_a_signal_that_was_not_named_is_left_to_its_own_handler(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        result = fit(hl.StopOnSignal("SIGUSR1"), At("train_step_end", press(signal.SIGUSR2)), folder=tmp_path)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (heard, result.clock.step) == ([signal.SIGUSR2], 8)


def test_an_earlier_handler_of_a_named_signal_is_called_too(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(hl.Preempted):
            fit(hl.StopOnSignal("SIGUSR1"), At("train_step_end", press(signal.SIGUSR1)), folder=tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_a_signal_that_the_program_ignores_stays_ignored(tmp_path: Path) -> None:
    """So does a run under ``nohup`` with SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = fit(hl.StopOnSignal("SIGHUP"), At("train_step_end", press(signal.SIGHUP)), folder=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.clock.step == 8


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            "SIGUSR3",
            r"StopOnSignal\(signals='SIGUSR3'\): no such signal\. Write for example StopOnSignal\('SIGUSR1'\)\.",
        ),
        ("usr1", "no such signal"),
        (4711, "no such signal"),
        ("SIGKILL", "no program can catch it"),
        (signal.SIGSTOP, "no program can catch it"),
        ("SIGINT", "Ctrl-C has its own meaning"),
    ],
)
def test_what_cannot_be_listened_to_is_refused_when_the_callback_is_made(given: Any, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        hl.StopOnSignal(given)


def test_a_requeue_that_cannot_be_called_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(ArgumentError, match=r"StopOnSignal\(requeue='sbatch'\): must be a function, 'slurm' or None\."):
        hl.StopOnSignal(requeue="sbatch")  # type: ignore[arg-type]


# -- requeue ---------------------------------------------------------------------------------------


class Requeue:
    """Notes what there was to see when it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[str]]] = []

    def __call__(self, run: Any) -> None:
        there = sorted(path.name for path in run.folder.glob("checkpoints/*")) if run.has_folder else []
        self.calls.append((run.clock.step, there))


@pytest.mark.parametrize("background", [False, True])
def test_requeue_is_called_once_when_the_checkpoint_is_on_the_disk(tmp_path: Path, background: bool) -> None:
    requeue = Requeue()
    checkpointer = hl.Checkpointer("2st", background=background)
    with pytest.raises(hl.Preempted):
        fit(hl.StopOnSignal("SIGUSR1", requeue=requeue), checkpointer, At("train_step_end", press(signal.SIGUSR1)),
            folder=tmp_path)  # fmt: skip
    assert requeue.calls == [(3, ["step-00000002", "step-00000003"])]


def test_two_different_signals_are_one_reason_to_leave_and_call_requeue_once(tmp_path: Path) -> None:
    """Slurm sends SIGUSR1, and SIGTERM soon after it."""
    requeue = Requeue()
    with pytest.raises(hl.Preempted) as caught:
        fit(hl.StopOnSignal("SIGUSR1", requeue=requeue),
            At("train_step_end", press(signal.SIGUSR1, signal.SIGTERM)), folder=tmp_path)  # fmt: skip
    assert caught.value.signal == signal.SIGUSR1
    assert requeue.calls == [(3, ["step-00000003"])]


@pytest.mark.parametrize("event", ["train_start", "eval_batch_start", "batch_fetch_start", "step_settled"])
def test_requeue_is_called_wherever_the_signal_comes(tmp_path: Path, event: str) -> None:
    requeue, step = Requeue(), 0 if event == "train_start" else 4
    with pytest.raises(hl.Preempted):
        fit(hl.StopOnSignal("SIGUSR1", requeue=requeue), At(event, press(signal.SIGUSR1), step),
            folder=tmp_path / "run", val=tiny_data(3))  # fmt: skip
    assert requeue.calls == [(step, [f"step-0000000{step}"])]
    went_on = fit(folder=tmp_path / "run", val=tiny_data(3), resume="auto")
    whole = fit(val=tiny_data(3))
    assert same_tensors(weights_of(went_on.model), weights_of(whole.model))
    assert went_on.history["val/loss"] == whole.history["val/loss"]


def test_requeue_is_called_also_without_a_folder_where_nothing_can_be_saved() -> None:
    requeue = Requeue()
    with pytest.raises(hl.Preempted) as caught:
        fit(hl.StopOnSignal("SIGUSR1", requeue=requeue), At("train_step_end", press(signal.SIGUSR1)))
    assert caught.value.checkpoint is None
    assert requeue.calls == [(3, [])]


def test_requeue_is_not_called_by_a_run_that_comes_to_its_end(tmp_path: Path) -> None:
    requeue = Requeue()
    fit(hl.StopOnSignal("SIGUSR1", requeue=requeue), folder=tmp_path)
    assert requeue.calls == []


def test_requeue_is_not_called_after_an_error_or_by_ctrl_c(tmp_path: Path) -> None:
    """A job that fails would fail again, for ever."""
    requeue = Requeue()
    with pytest.raises(RuntimeError, match="planted"):
        fit(hl.StopOnSignal("SIGUSR1", requeue=requeue), crash_at(3), folder=tmp_path / "a")
    stopper = hl.StopOnSignal("SIGUSR1", requeue=requeue)
    assert fit(stopper, at_step(3, press_ctrl_c), folder=tmp_path / "b").interrupted
    assert requeue.calls == []


def test_one_that_was_preempted_does_not_requeue_again_in_the_next_run(tmp_path: Path) -> None:
    requeue = Requeue()
    stopper = hl.StopOnSignal("SIGUSR1", requeue=requeue)
    with pytest.raises(hl.Preempted):
        fit(stopper, At("train_step_end", press(signal.SIGUSR1)), folder=tmp_path)
    assert fit(stopper, folder=tmp_path, resume="auto").clock.step == 8
    assert len(requeue.calls) == 1


def test_a_requeue_that_fails_is_said_and_the_exit_code_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def requeue(run: Any) -> None:
        raise OSError("the scheduler does not answer")

    with pytest.raises(hl.Preempted) as caught:
        fit(hl.StopOnSignal(requeue=requeue), At("train_step_end", press(signal.SIGTERM)), folder=tmp_path)
    assert caught.value.code == 143
    assert "the job was not put back into the queue: OSError: the scheduler does not answer" in caplog.text
    assert Store(tmp_path / "checkpoints").latest() is not None


# -- as a job ----------------------------------------------------------------------------------------

JOB = """
    import sys, time
    import torch
    from torch import nn
    import hookline as hl
    from hookline.testing import TinyModel, tiny_data

    class Slow(hl.Callback):
        def on_train_step_end(self, run):
            print("step", run.clock.step, flush=True)
            time.sleep(0.05)

    def requeue(run):
        print("requeue", flush=True)

    hl.fit(
        TinyModel(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, max_duration="1000000st",
        folder=sys.argv[1], seed=0,
        callbacks=[hl.StopOnSignal("SIGUSR1", requeue=requeue), Slow(), hl.ProgressBar(style=None)],
    )
"""


def test_a_job_that_gets_sigusr1_exits_with_its_code_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with start_script(JOB, args=[tmp_path]) as job:
        job.wait_for("step 2")
        job.send(signal.SIGUSR1)
        done = job.finish()
    assert done.returncode == 128 + signal.SIGUSR1, done.stderr
    assert done.stdout.count("requeue") == 1
    (step,) = saved_steps(tmp_path)
    assert f"step {step}\nrequeue\n" in done.stdout
    first: list[int] = []
    count = hl.LambdaCallback(on_train_step_end=lambda run: first.append(run.clock.step))
    fit(count, folder=tmp_path, resume="auto", max_duration=f"{step + 2}st", optimizer=torch.optim.SGD)
    assert first[0] == step + 1


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name that notes how it was called; the file with its notes."""
    tool, notes = tmp_path / "bin" / "scontrol", tmp_path / "notes"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    return notes


def requeued(tmp_path: Path) -> None:
    with pytest.raises(hl.Preempted) as caught:
        fit(hl.StopOnSignal(requeue="slurm"), At("train_step_end", press(signal.SIGTERM)), folder=tmp_path / "run")
    assert caught.value.code == 143


@pytest.mark.parametrize(
    ("job", "called"),
    [
        ({"SLURM_JOB_ID": "4711"}, "requeue 4711\n"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "12"}, "requeue 4700_12\n"),
    ],
)
def test_in_slurm_a_job_is_put_back_by_its_number_and_one_of_an_array_by_its_task(
    tmp_path: Path, scontrol: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, str], called: str
) -> None:
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    requeued(tmp_path)
    assert scontrol.read_text() == called


@pytest.mark.parametrize("number", ["", "1; rm -rf /", "--help", "٣"])
def test_what_is_not_the_number_of_a_job_is_never_handed_on_and_is_said(
    tmp_path: Path, scontrol: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", number)
    requeued(tmp_path)
    assert not scontrol.exists()
    assert "is not the number of a job" in caplog.text


def test_a_scheduler_that_says_no_is_said(
    tmp_path: Path, scontrol: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    requeued(tmp_path)
    assert "the job was not put back into the queue: CalledProcessError" in caplog.text
