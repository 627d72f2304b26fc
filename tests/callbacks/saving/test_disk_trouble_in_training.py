"""A full disk, a limit, a folder that is not ours: training follows the policy, and the old checkpoint loads."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import CheckpointWriteError
from hookline.loop import Trainer
from hookline.testing import Recorder, run_script, tiny_data


class Growing(nn.Module):
    """A model of about 1 MB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(4, 50_000)
        self.out = nn.Linear(50_000, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.wide(x)))


def wait_for_saves() -> None:
    """Until nothing is being written in the background."""
    end = time.monotonic() + 200
    while any(thread.name == "hookline-save" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)


class Filling(hl.Callback):
    """Fills the disk after one step and makes room after another."""

    def __init__(self, path: Path, full_at: int, free_at: int) -> None:
        self.path, self.full_at, self.free_at = path, full_at, free_at

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step in (self.full_at, self.free_at):
            wait_for_saves()
        if run.clock.step == self.full_at:
            with pytest.raises(OSError, match="No space left"):
                self.path.write_bytes(bytes(2**23))
        elif run.clock.step == self.free_at:
            self.path.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB: two checkpoints fit, and a third one only if nothing else lies there."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fit(folder: Path, *callbacks: object, **options: Any) -> Any:
    trainer = Trainer(folder=folder, callbacks=callbacks, log_every=None, **{"max_duration": "6st", **options})
    return trainer.fit(Growing(), tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def steps(folder: Path) -> list[int]:
    return [checkpoint.about.step for checkpoint in Store(folder / "checkpoints").checkpoints()]


@pytest.mark.parametrize("background", [False, True])
def test_with_warn_a_full_disk_costs_one_checkpoint_and_nothing_else(
    small_disk: Path, caplog: pytest.LogCaptureFixture, background: bool
) -> None:
    recorder = Recorder(only=("checkpoint_saved", "checkpoint_failed"))
    errors: list[Any] = []
    note = hl.on("checkpoint_failed")(lambda run: errors.append(run.exception))
    checkpointer = hl.Checkpointer("2st", keep_last=1, on_save_error="warn", background=background)
    folder = small_disk / "run"
    result = fit(folder, checkpointer, recorder, note, Filling(small_disk / "others", full_at=3, free_at=5))
    assert result.clock.step == 6
    assert recorder.names == ["checkpoint_saved", "checkpoint_failed", "checkpoint_saved"]
    assert [error.errno for error in errors] == [errno.ENOSPC]
    assert "No space left on device" in caplog.text
    assert steps(folder) == [6]
    Store(folder / "checkpoints").verify(folder / "checkpoints" / "step-00000006")


@pytest.mark.parametrize("background", [False, True])
def test_with_raise_a_full_disk_ends_the_run_and_the_old_checkpoint_goes_on(small_disk: Path, background: bool) -> None:
    folder, others = small_disk / "run", small_disk / "others"
    with pytest.raises(CheckpointWriteError, match="the earlier checkpoints are untouched") as caught:
        fit(folder, hl.Checkpointer("2st", keep_last=1, background=background), Filling(others, full_at=3, free_at=99))
    assert caught.value.errno == errno.ENOSPC
    assert steps(folder) == [2]
    assert os.listdir(folder / "checkpoints") == ["step-00000002"]
    others.unlink()
    assert fit(folder, hl.Checkpointer("2st", keep_last=1), resume="auto").clock.step == 6
    assert steps(folder) == [6]


def test_a_signal_on_a_full_disk_does_not_say_that_the_run_was_saved(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signalled = hl.on("train_step_end", at="3st")(lambda run: signal.raise_signal(signal.SIGTERM))
    checkpointer = hl.Checkpointer("2st", keep_last=1, on_save_error="warn")
    with pytest.raises(hl.Preempted) as caught:
        fit(small_disk / "run", checkpointer, Filling(small_disk / "others", full_at=3, free_at=99), signalled)
    assert steps(small_disk / "run") == [2]
    assert caught.value.checkpoint is None
    since = small_disk / "run" / "checkpoints" / "step-00000002"
    assert f"SIGTERM: nothing was saved since {since}; the run exits with code 143" in caplog.messages


COMMON = """
import json, os, resource, sys, torch, hookline as hl
import hookline.callbacks.watch, torch._dynamo  # another user may not be able to read all of Python
from hookline.testing import TinyModel, tiny_data

failed, raised = [], []

class Trouble(hl.Callback):
    def on_train_step_end(self, run):
        if run.clock.step in (3, 5):
            trouble(run, run.clock.step == 3)

    def on_checkpoint_failed(self, run):
        failed.append([run.clock.step, run.exception.errno])

def train(policy):
    callbacks = [hl.Checkpointer("2st", keep_last=None, on_save_error=policy), Trouble(), hl.ProgressBar(style=None)]
    folder = f"{sys.argv[1]}/{policy}"
    trainer = hl.Trainer(max_duration="6st", folder=folder, callbacks=callbacks, log_every=None)
    trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)

def train_both():
    train("warn")
    try:
        train("raise")
    except hl.HooklineError as error:
        raised.append(str(error))
"""
LIMITED = (
    COMMON
    + """
def trouble(run, begins):
    limit = 1000 if begins else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

train_both()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # it counts for stdout, too
print(json.dumps([failed, raised]))
"""
)
READ_ONLY = (
    COMMON
    + """
def trouble(run, begins):
    os.chmod(run.folder / "checkpoints", 0o555 if begins else 0o755)

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
train_both()
print(json.dumps([failed, raised]))
"""
)


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [(LIMITED, errno.EFBIG, "File too large (errno 27)"), (READ_ONLY, errno.EACCES, "Permission denied (errno 13)")],
    ids=["a limit on the size of files", "a folder that becomes read-only"],
)
def test_trouble_that_passes_is_followed_as_the_policy_says(script: str, code: int, text: str) -> None:
    with tempfile.TemporaryDirectory() as base:  # the folders of pytest are for their owner alone
        Path(base).chmod(0o777)
        done = run_script(script, args=[base])
        assert done.returncode == 0, done.stderr
        failed, raised = json.loads(done.stdout)
        assert failed == [[4, code], [4, code]]
        assert len(raised) == 1
        assert text in raised[0]
        for policy, kept in (("warn", [2, 6]), ("raise", [2])):
            checkpoints = Path(base, policy, "checkpoints")
            checkpoints.chmod(0o755)
            assert steps(checkpoints.parent) == kept
            Store(checkpoints).verify(checkpoints / "step-00000002")
