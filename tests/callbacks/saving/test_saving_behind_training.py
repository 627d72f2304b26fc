"""``Checkpointer(background=True)``: one save in flight, no error lost, and the last one is always waited for."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import CheckpointWriteError
from hookline.loop import Trainer
from hookline.testing import Recorder, TinyModel, run_script, tiny_data


class At(hl.Callback):
    def __init__(self, event: str, act: Any, step: int | None = None) -> None:
        self.event, self.act, self.step = event, act, step

    def on_event(self, event: str, run: Any) -> None:
        if event == self.event and self.step in (None, run.clock.step):
            self.act(run)


def fit(folder: Path, *callbacks: object, **options: Any) -> Any:
    trainer = Trainer(folder=folder, callbacks=callbacks, **{"max_duration": "6st", **options})
    return trainer.fit(TinyModel(), tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def steps(folder: Path) -> list[int]:
    return [checkpoint.about.step for checkpoint in Store(folder / "checkpoints").checkpoints()]


class Disk:
    """A disk that can be held up and made to fail; what it does otherwise is real."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready = threading.Event()
        self.ready.set()
        self.fails_at: set[int] = set()
        self.at_work = self.most_at_work = 0
        self.threads: list[str] = []
        real = Store.save

        def save(store: Store, snapshot: Any, name: str | None = None) -> Any:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
            self.threads.append(threading.current_thread().name)
            try:
                assert self.ready.wait(200)
                if snapshot.about.step in self.fails_at:
                    cause = OSError(errno.ENOSPC, "No space left on device")
                    raise CheckpointWriteError(str(store.folder), cause, needed=100, free=0)
                return real(store, snapshot, name)
            finally:
                self.at_work -= 1

        monkeypatch.setattr(Store, "save", save)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def wait_until_written(run: Any) -> None:
    """Until the thread of the save has ended; the loop looks at it at the end of the step."""
    end = time.monotonic() + 200
    while any(thread.name == "hookline-save" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_training_goes_on_while_a_save_is_written(tmp_path: Path, disk: Disk) -> None:
    disk.ready.clear()
    fit(tmp_path, hl.Checkpointer("2st", background=True, at_end=False),
        At("train_step_end", lambda run: disk.ready.set(), step=3))  # fmt: skip
    assert steps(tmp_path) == [2, 4, 6]  # step 3 was reached while step 2 was being written
    assert set(disk.threads) == {"hookline-save"}


def test_one_save_at_a_time_is_written(tmp_path: Path, disk: Disk) -> None:
    fit(tmp_path, hl.Checkpointer("1st", background=True, keep_last=None))
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert disk.most_at_work == 1


def test_an_error_comes_at_the_next_step(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {2}
    recorder = Recorder(only=("checkpoint_failed", "exception"), fields=("clock.step", "exception"))
    with pytest.raises(CheckpointWriteError, match="No space left") as caught:
        fit(tmp_path, hl.Checkpointer("2st", background=True), recorder, At("batch_fetch_end", wait_until_written))
    assert [(row["event"], row["clock.step"]) for row in recorder.rows] == [("checkpoint_failed", 3), ("exception", 3)]
    assert "in the background save of step 2" in caught.value.__notes__
    assert steps(tmp_path) == []


def test_an_error_of_the_last_save_comes_at_the_end(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {6}
    recorder = Recorder(only=("checkpoint_failed", "teardown"))
    with pytest.raises(CheckpointWriteError):
        fit(tmp_path, hl.Checkpointer("3st", background=True, at_end=False), recorder)
    assert recorder.names == ["checkpoint_failed", "teardown"]
    assert steps(tmp_path) == [3]


@pytest.mark.parametrize("wait", [False, True], ids=["in flight", "ended"])
def test_with_warn_the_save_after_a_failed_one_is_made(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, wait: bool
) -> None:
    disk.fails_at = {2}
    disk.ready.clear()

    def release(run: Any) -> None:
        threading.Timer(0.2, disk.ready.set).start()  # not before the loop waits for it in the save of step 4

    callbacks: list[Any] = [hl.Checkpointer("2st", background=True, on_save_error="warn")]
    if wait:
        disk.ready.set()
        callbacks.append(At("batch_fetch_end", wait_until_written))
    else:
        callbacks.append(At("step_settled", release, step=4))
    recorder = Recorder(only=("checkpoint_failed", "checkpoint_saved"))
    fit(tmp_path, *callbacks, recorder)
    assert steps(tmp_path) == [4, 6]
    assert recorder.names == ["checkpoint_failed", "checkpoint_saved", "checkpoint_saved"]
    assert "could not be saved, and the run goes on" in caplog.text


def test_the_save_in_flight_is_waited_for_when_the_run_fails(tmp_path: Path, disk: Disk) -> None:
    disk.ready.clear()

    def spoil(run: Any) -> None:
        threading.Timer(0.2, disk.ready.set).start()
        raise ValueError("planted")

    recorder = Recorder(only=("checkpoint_saved", "exception", "teardown"))
    with pytest.raises(ValueError, match="planted"):
        fit(tmp_path, hl.Checkpointer("2st", background=True), recorder, At("train_step_start", spoil, step=2))
    assert steps(tmp_path) == [2]
    assert recorder.names == ["checkpoint_saved", "exception", "teardown"]


def test_an_error_of_the_save_in_flight_does_not_hide_that_of_the_run(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {2}

    def spoil(run: Any) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted") as caught:
        fit(tmp_path, hl.Checkpointer("2st", background=True), At("train_step_start", spoil, step=2))
    assert any("CheckpointWriteError" in note for note in caught.value.__notes__)


def test_no_thread_and_no_buffer_is_left_behind(tmp_path: Path) -> None:
    checkpointer = hl.Checkpointer("1st", background=True)
    fit(tmp_path, checkpointer)
    assert not [thread for thread in threading.enumerate() if thread.name == "hookline-save"]
    assert checkpointer._target.writer._copies.size == 0


LEAVES = """
import sys, torch, hookline as hl
from hookline.testing import TinyModel, tiny_data

class Leave(hl.Callback):
    def on_train_step_start(self, run):
        if run.clock.step == 3:
            sys.exit(7)

callbacks = [hl.Checkpointer("1st", background=True), Leave(), hl.ProgressBar(style=None)]
trainer = hl.Trainer(max_duration="9st", folder=sys.argv[1], callbacks=callbacks)
trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
"""


def test_a_script_that_leaves_has_its_last_save(tmp_path: Path) -> None:
    done = run_script(LEAVES, args=[tmp_path])
    assert done.returncode == 7, done.stderr
    assert steps(tmp_path) == [1, 2, 3]
