"""One run at a time in a folder: refused with the name of the other, and free again however that one ended."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hookline.checkpoint import FolderLock
from hookline.errors import CheckpointLockedError, CheckpointWriteError, HooklineWarning
from hookline.testing import run_script, start_script

HOLD = """
import sys
from hookline.checkpoint import FolderLock
lock = FolderLock(sys.argv[1]).acquire()
print("held", flush=True)
input()
"""
TRY = """
import sys
from hookline.checkpoint import FolderLock
from hookline.errors import CheckpointLockedError
try:
    FolderLock(sys.argv[1]).acquire()
    print("free")
except CheckpointLockedError as error:
    print(error)
"""
# The child is one of a DataLoader, or any other that was forked: it lives on when the parent is killed.
FORK = """
import os, signal, sys, time
from hookline.checkpoint import FolderLock
lock = FolderLock(sys.argv[1]).acquire()
child = os.fork()
if not child:
    os.setsid()
    print("child holds it:", lock.held, flush=True)
    time.sleep(600)
print(f"child={child};", flush=True)
time.sleep(600)
"""


def test_a_second_lock_in_the_same_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    with first:
        assert first.held
        with pytest.raises(CheckpointLockedError, match=rf"{tmp_path} is in use by process {os.getpid()} on "):
            second.acquire()
        assert not second.held
        with pytest.raises(CheckpointLockedError, match="already locked by this FolderLock"):
            first.acquire()
        assert first.held
    assert not first.held
    with second:
        assert second.held


def test_another_process_is_named_and_its_lock_ends_with_it_even_when_it_is_killed(tmp_path: Path) -> None:
    with start_script(HOLD, args=[tmp_path]) as script:
        script.wait_for("held")
        who = rf"process {script.process.pid} on '{socket.gethostname()}' since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
        with pytest.raises(CheckpointLockedError, match=who):
            FolderLock(tmp_path).acquire()
        script.send(signal.SIGKILL)
        script.finish()
        FolderLock(tmp_path).acquire().close()


def test_a_forked_child_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    with start_script(FORK, args=[tmp_path]) as script:
        script.wait_for("child holds it: False")
        script.wait_for(";")
        child = int(script.stdout.partition("child=")[2].partition(";")[0])
        try:
            with pytest.raises(CheckpointLockedError):  # the child closed its copy and did not unlock the parent's
                FolderLock(tmp_path).acquire()
            script.send(signal.SIGKILL)
            script.finish()
            os.kill(child, 0)  # it is still there
            FolderLock(tmp_path).acquire().close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_program_that_is_started_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as program:
        lock.close()
        FolderLock(tmp_path).acquire().close()
        program.communicate(b"\n")


def test_a_lock_that_is_given_back_is_free_also_while_a_copy_of_its_descriptor_is_open(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path).acquire()
    files = {int(name): Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    file = next(number for number, link in files.items() if link.exists() and link.samefile(tmp_path / "run.lock"))
    copy = os.dup(file)  # as a process that is being started has one for a moment
    try:
        lock.close()
        FolderLock(tmp_path).acquire().close()
    finally:
        os.close(copy)


def test_a_worker_that_ends_does_not_take_the_parents_lock_along(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        for context in ("fork", "spawn"):
            worker = multiprocessing.get_context(context).Process(target=os.getpid)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        assert "is in use by process" in run_script(TRY, args=[tmp_path]).stdout
    assert run_script(TRY, args=[tmp_path]).stdout == "free\n"


def test_what_another_left_in_the_file_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text('{"pid": 1, "host": "gone", "since": "2020-01-01 00:00:00"}')
    with FolderLock(tmp_path):
        (tmp_path / "run.lock").write_text("nonsense")
        with pytest.raises(CheckpointLockedError, match=r"in use by another process\."):
            FolderLock(tmp_path).acquire()


def test_a_link_is_not_followed_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointWriteError, match=r"run\.lock"):
        FolderLock(tmp_path).acquire()
    assert not (tmp_path / "precious").exists()
    with pytest.raises(CheckpointWriteError, match=r"missing/run\.lock: No such file"):
        FolderLock(tmp_path / "missing").acquire()


def test_a_file_system_without_locks_is_said_and_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)  # there is no such file system here
    with pytest.warns(HooklineWarning, match="file system without locks"), FolderLock(tmp_path) as lock:
        assert lock.held


def test_locks_that_are_gone_leave_nothing_open(tmp_path: Path) -> None:
    def descriptors() -> list[str]:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return [str(link.readlink()) for link in links if link.is_symlink()]  # that of the listing itself is gone

    for _ in range(20):
        FolderLock(tmp_path).acquire().close()
    held = FolderLock(tmp_path).acquire()
    for _ in range(5):
        with pytest.raises(CheckpointLockedError):
            FolderLock(tmp_path).acquire()
    assert descriptors().count(str(tmp_path / "run.lock")) == 1
    held.close()
    assert descriptors().count(str(tmp_path / "run.lock")) == 0


def test_one_who_looks_whether_the_run_is_alive_does_not_keep_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is open in a browser asks once a second."""
    (tmp_path / "run.lock").touch()
    looking = os.open(tmp_path / "run.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(looking)

    monkeypatch.setattr(time, "sleep", sleep)
    with FolderLock(tmp_path) as lock:
        assert lock.held
    assert len(waits) == 2
