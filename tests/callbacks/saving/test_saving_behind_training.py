"""``Checkpointer(background=True)``: one save in flight, no error lost, and the last one is always waited for."""

from __future__ import annotations

import errno
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import CheckpointWriteError
from hookline.testing import Recorder, tiny_data
from tests.support import at_step, crash_at, fit, saved_steps, wait_until
from tests.support.inside import bytes_held_by_saves

fit_six_steps = partial(fit, train=tiny_data(3), max_duration="6st")


def is_saving() -> bool:
    return any(thread.name == "hookline-save" for thread in threading.enumerate())


@hl.on("batch_fetch_end")
def wait_for_save(run: Any) -> None:
    """The loop looks at the thread at the end of the step."""
    wait_until(lambda: not is_saving(), "the save in the background")


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


def test_training_goes_on_while_a_save_is_written(tmp_path: Path, disk: Disk) -> None:
    disk.ready.clear()
    fit_six_steps(
        hl.Checkpointer("2st", background=True, at_end=False),
        at_step(3, lambda run: disk.ready.set()),
        folder=tmp_path,
    )
    assert saved_steps(tmp_path) == [2, 4, 6]  # step 3 was reached while step 2 was being written
    assert set(disk.threads) == {"hookline-save"}


def test_one_save_at_a_time_is_written(tmp_path: Path, disk: Disk) -> None:
    fit_six_steps(hl.Checkpointer("1st", background=True, keep_last=None), folder=tmp_path)
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert disk.most_at_work == 1


def test_an_error_comes_at_the_next_step(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {2}
    recorder = Recorder(only=("checkpoint_failed", "exception"), fields=("clock.step", "exception"))
    with pytest.raises(CheckpointWriteError, match="No space left") as caught:
        fit_six_steps(
            hl.Checkpointer("2st", background=True),
            recorder,
            wait_for_save,
            folder=tmp_path,
        )
    assert [(row["event"], row["clock.step"]) for row in recorder.rows] == [("checkpoint_failed", 3), ("exception", 3)]
    assert "in the background save of step 2" in caught.value.__notes__
    assert saved_steps(tmp_path) == []


def test_an_error_of_the_last_save_comes_at_the_end(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {6}
    recorder = Recorder(only=("checkpoint_failed", "teardown"))
    with pytest.raises(CheckpointWriteError):
        fit_six_steps(hl.Checkpointer("3st", background=True, at_end=False), recorder, folder=tmp_path)
    assert recorder.names == ["checkpoint_failed", "teardown"]
    assert saved_steps(tmp_path) == [3]


@pytest.mark.parametrize("wait", [False, True], ids=["in flight", "ended"])
def test_with_warn_the_save_after_a_failed_one_is_made(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, wait: bool
) -> None:
    disk.fails_at = {2}
    disk.ready.clear()

    def release(run: Any) -> None:
        threading.Timer(0.2, disk.ready.set).start()  # not before the loop waits for it in the save of step 4

    callbacks: list[Any] = [hl.Checkpointer("2st", background=True, on_error="warn")]
    if wait:
        disk.ready.set()
        callbacks.append(wait_for_save)
    else:
        callbacks.append(at_step(4, release, "step_settled"))
    recorder = Recorder(only=("checkpoint_failed", "checkpoint_saved"))
    fit_six_steps(*callbacks, recorder, folder=tmp_path)
    assert saved_steps(tmp_path) == [4, 6]
    assert recorder.names == ["checkpoint_failed", "checkpoint_saved", "checkpoint_saved"]
    assert "could not be saved, and the run continues" in caplog.text


def test_the_save_in_flight_is_waited_for_when_the_run_fails(tmp_path: Path, disk: Disk) -> None:
    disk.ready.clear()

    def spoil(run: Any) -> None:
        threading.Timer(0.2, disk.ready.set).start()
        raise ValueError("planted")

    recorder = Recorder(only=("checkpoint_saved", "exception", "teardown"))
    with pytest.raises(ValueError, match="planted"):
        fit_six_steps(
            hl.Checkpointer("2st", background=True), recorder, at_step(2, spoil, "train_step_start"), folder=tmp_path
        )
    assert saved_steps(tmp_path) == [2]
    assert recorder.names == ["checkpoint_saved", "exception", "teardown"]


def test_an_error_of_the_save_in_flight_does_not_hide_that_of_the_run(tmp_path: Path, disk: Disk) -> None:
    disk.fails_at = {2}
    with pytest.raises(RuntimeError, match="planted") as caught:
        fit_six_steps(hl.Checkpointer("2st", background=True), crash_at(2, "train_step_start"), folder=tmp_path)
    assert any("CheckpointWriteError" in note for note in caught.value.__notes__)


def test_no_thread_and_no_buffer_is_left_behind(tmp_path: Path) -> None:
    runs: list[hl.Run] = []
    fit_six_steps(hl.Checkpointer("1st", background=True), hl.on("teardown")(runs.append), folder=tmp_path)
    assert not is_saving()
    assert bytes_held_by_saves(runs[0]) == 0


def test_a_script_that_leaves_has_its_last_save(tmp_path: Path, disk: Disk) -> None:
    def hold(run: Any) -> None:
        wait_until(lambda: not is_saving(), "the save of step 2")
        disk.ready.clear()

    def leave(run: Any) -> None:
        threading.Timer(0.1, disk.ready.set).start()
        sys.exit(7)

    callbacks = [hl.Checkpointer("1st", background=True), at_step(3, hold), at_step(3, leave, "train_step_start")]
    with pytest.raises(SystemExit) as caught:
        fit_six_steps(*callbacks, folder=tmp_path)
    assert caught.value.code == 7
    assert saved_steps(tmp_path) == [1, 2, 3]
