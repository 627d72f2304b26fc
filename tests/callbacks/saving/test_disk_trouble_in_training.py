"""A full disk, a limit, a folder that is not ours: training follows the policy, and the old checkpoint loads."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import CheckpointWriteError
from hookline.testing import Recorder, run_script, tiny_data
from tests.support import fit, saved_steps, small_disk, wait_until


class Growing(nn.Module):
    """A model of about 1 MB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(4, 50_000)
        self.out = nn.Linear(50_000, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.wide(x)))


def fit_large(*callbacks: object, **options: Any) -> Any:
    """Two epochs of three steps."""
    return fit(*callbacks, model=Growing(), train=tiny_data(3), log_every=None, **options)


def is_saving() -> bool:
    return any(thread.name == "hookline-save" for thread in threading.enumerate())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB: two checkpoints fit, and a third one only if nothing else lies there."""
    with small_disk(tmp_path / "small", megabytes=4) as path:
        yield path


class Filling(hl.Callback):
    """Fills the disk after one step and makes room after another."""

    def __init__(self, path: Path, full_at: int, free_at: int) -> None:
        self.path, self.full_at, self.free_at = path, full_at, free_at

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step in (self.full_at, self.free_at):
            wait_until(lambda: not is_saving(), "the save in the background")
        if run.clock.step == self.full_at:
            with pytest.raises(OSError, match="No space left"):
                self.path.write_bytes(bytes(2**23))
        elif run.clock.step == self.free_at:
            self.path.unlink()


@pytest.mark.parametrize("background", [False, True])
def test_with_warn_a_full_disk_costs_one_checkpoint_and_nothing_else(
    disk: Path, caplog: pytest.LogCaptureFixture, background: bool
) -> None:
    recorder = Recorder(only=("checkpoint_saved", "checkpoint_failed"))
    errors: list[Any] = []
    note = hl.on("checkpoint_failed")(lambda run: errors.append(run.exception))
    checkpointer = hl.Checkpointer("2st", keep_last=1, on_error="warn", background=background)
    folder = disk / "run"
    result = fit_large(checkpointer, recorder, note, Filling(disk / "others", full_at=3, free_at=5), folder=folder)
    assert result.clock.step == 6
    assert recorder.names == ["checkpoint_saved", "checkpoint_failed", "checkpoint_saved"]
    assert [error.errno for error in errors] == [errno.ENOSPC]
    assert "No space left on device" in caplog.text
    assert saved_steps(folder) == [6]
    Store(folder / "checkpoints").verify(folder / "checkpoints" / "step-00000006")


@pytest.mark.parametrize("background", [False, True])
def test_with_raise_a_full_disk_ends_the_run_and_the_old_checkpoint_goes_on(disk: Path, background: bool) -> None:
    folder, others = disk / "run", disk / "others"
    with pytest.raises(CheckpointWriteError, match="Earlier checkpoints are unchanged") as caught:
        fit_large(
            hl.Checkpointer("2st", keep_last=1, background=background),
            Filling(others, full_at=3, free_at=99),
            folder=folder,
        )
    assert caught.value.errno == errno.ENOSPC
    assert saved_steps(folder) == [2]
    assert os.listdir(folder / "checkpoints") == ["step-00000002"]
    others.unlink()
    assert fit_large(hl.Checkpointer("2st", keep_last=1), folder=folder, resume="auto").clock.step == 6
    assert saved_steps(folder) == [6]


def test_a_signal_on_a_full_disk_does_not_say_that_the_run_was_saved(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signalled = hl.on("train_step_end", at="3st")(lambda run: signal.raise_signal(signal.SIGTERM))
    checkpointer = hl.Checkpointer("2st", keep_last=1, on_error="warn")
    with pytest.raises(hl.Preempted) as caught:
        fit_large(checkpointer, Filling(disk / "others", full_at=3, free_at=99), signalled, folder=disk / "run")
    assert saved_steps(disk / "run") == [2]
    assert caught.value.checkpoint is None
    since = disk / "run" / "checkpoints" / "step-00000002"
    assert f"SIGTERM: nothing was saved since {since}; the run exits with code 143" in caplog.messages


SCRIPT = """
import json, os, resource, sys, torch, hookline as hl
import hookline.callbacks.watch, torch._dynamo  # another user may not be able to read all of Python
from hookline.testing import TinyModel, tiny_data

def limit(run, begins):
    size = 1000 if begins else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def lock(run, begins):
    os.chmod(run.folder / "checkpoints", 0o555 if begins else 0o755)

class Trouble(hl.Callback):
    def __init__(self, make, failed):
        self.make, self.failed = make, failed

    def on_train_step_end(self, run):
        if run.clock.step in (3, 5):
            self.make(run, run.clock.step == 3)

    def on_checkpoint_failed(self, run):
        self.failed.append([run.clock.step, run.exception.errno])

def train(policy, trouble):
    checkpointer = hl.Checkpointer("2st", keep_last=None, on_error=policy)
    folder = f"{sys.argv[1]}/{trouble.make.__name__}/{policy}"
    callbacks = [checkpointer, trouble, hl.ProgressBar(style=None)]
    trainer = hl.Trainer(max_duration="6st", folder=folder, callbacks=callbacks, log_every=None)
    trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)

def train_both(make):
    failed, raised = [], []
    train("warn", Trouble(make, failed))
    try:
        train("raise", Trouble(make, failed))
    except hl.HooklineError as error:
        raised.append(str(error))
    return failed, raised

found = {"limit": train_both(limit)}
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # it counts for stdout, too
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.mkdir(f"{sys.argv[1]}/lock")
found["lock"] = train_both(lock)
print(json.dumps(found))
"""


def test_a_size_limit_or_a_read_only_folder_that_passes_is_followed_as_the_policy_says() -> None:
    with tempfile.TemporaryDirectory() as base:  # the folders of pytest are for their owner alone
        Path(base).chmod(0o777)
        done = run_script(SCRIPT, args=[base])
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        for trouble, code, text in (
            ("limit", errno.EFBIG, "File too large (errno 27)"),
            ("lock", errno.EACCES, "Permission denied (errno 13)"),
        ):
            failed, raised = found[trouble]
            assert failed == [[4, code], [4, code]]
            assert len(raised) == 1
            assert text in raised[0]
            for policy, kept in (("warn", [2, 6]), ("raise", [2])):
                checkpoints = Path(base, trouble, policy, "checkpoints")
                checkpoints.chmod(0o755)
                assert saved_steps(checkpoints.parent) == kept
                Store(checkpoints).verify(checkpoints / "step-00000002")
