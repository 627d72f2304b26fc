"""A disk that is full, a limit, a folder that is not ours: the right error, no trace, and the old checkpoint loads."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from hookline.checkpoint import About, Snapshot, Store
from hookline.errors import CheckpointError, CheckpointWriteError
from hookline.testing import run_script
from tests import support

COMMON = """
import errno, json, os, resource, sys
import torch
from hookline.checkpoint import About, Snapshot, Store
from hookline.errors import CheckpointError, CheckpointWriteError

def snapshot(step, count):
    about = About(step=step, epoch=0, batch=0, sample=0, seconds=0.0, run="r")
    return Snapshot(about, {"w": torch.full((count,), float(step))}, {"m": torch.ones(10)})

def tried(act):
    try:
        act()
    except CheckpointWriteError as error:
        return [errno.errorcode[error.errno], error.path, error.needed, error.free, str(error)]
    except CheckpointError as error:
        return ["CheckpointError", str(error)]
    return ["worked"]

folder = sys.argv[1]
store = Store(folder)
"""


def snapshot(step: int, count: int = 10) -> Snapshot:
    about = About(step=step, epoch=0, batch=0, sample=0, seconds=0.0, run="r")
    return Snapshot(about, {"w": torch.full((count,), float(step))}, {"m": torch.ones(10)})


def first(store: Store) -> None:
    """The one that was there before is there, whole, and nothing else is."""
    assert os.listdir(store.folder) == ["step-00000001"]
    assert store.load(store.checkpoints()[0]).weights["w"].tolist() == [1.0] * 10


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "checkpoints")
    store.save(snapshot(1))
    return store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with support.small_disk(tmp_path / "small", megabytes=2) as path:
        yield path


def test_a_disk_with_too_little_room_is_refused_before_anything_is_written(small_disk: Path) -> None:
    store = Store(small_disk / "checkpoints")
    store.save(snapshot(1))
    with pytest.raises(CheckpointWriteError, match=r"No space left on device \(errno 28\)\. Needed: 4,0\d\d") as caught:
        store.save(snapshot(2, 1_000_000))
    error = caught.value
    assert error.errno == errno.ENOSPC
    assert error.needed > 4_000_000
    assert error.free is not None
    assert 0 < error.free < 2 * 2**20
    first(store)


def test_a_disk_that_fills_up_while_it_is_written_gives_the_same_error(small_disk: Path, monkeypatch: Any) -> None:
    store = Store(small_disk / "checkpoints")
    store.save(snapshot(1))
    real = os.statvfs

    def others_fill_it_later(path: Any) -> os.statvfs_result:
        found = real(path)
        return os.statvfs_result((found[0], found[1], found[2], *(2**40,) * 3, *found[6:], found.f_fsid))

    monkeypatch.setattr(os, "statvfs", others_fill_it_later)
    with pytest.raises(CheckpointWriteError, match=r"model\.safetensors: No space left") as caught:
        store.save(snapshot(2, 1_000_000))
    assert caught.value.errno == errno.ENOSPC
    first(store)
    monkeypatch.undo()
    store.save(snapshot(3, 1000))  # there is room again
    assert [found.about.step for found in store.checkpoints()] == [1, 3]


def test_a_disk_without_any_room_left_still_lists_loads_and_deletes(small_disk: Path) -> None:
    store = Store(small_disk / "checkpoints")
    store.save(snapshot(1))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "full").write_bytes(bytes(2**22))
    with pytest.raises(CheckpointWriteError) as caught:
        store.save(snapshot(2))
    assert caught.value.errno == errno.ENOSPC
    first(store)
    store.verify(store.checkpoints()[0])
    store.delete(store.checkpoints()[0])
    assert os.listdir(store.folder) == []


def test_a_limit_on_the_size_of_files_is_named(store: Store) -> None:
    script = COMMON + "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    script += "print(json.dumps(tried(lambda: store.save(snapshot(2, 1_000_000)))))"
    done = run_script(script, args=[store.folder])
    assert done.returncode == 0, done.stderr
    assert '"EFBIG"' in done.stdout
    assert "model.safetensors: File too large (errno 27). Needed: 4,0" in done.stdout
    first(store)


READ_ONLY = (
    COMMON
    + """
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(json.dumps([
    tried(lambda: store.save(snapshot(2, 10))),
    tried(lambda: store.delete(store.checkpoints()[0])),
    tried(lambda: Store(folder + "/new/below").save(snapshot(2, 10))),
    store.load(store.latest()).about.step,
]))
"""
)


def test_a_folder_that_is_not_ours_to_write_is_named_and_can_still_be_read() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as base:  # the folders of pytest are for their owner alone
        store = Store(Path(base) / "checkpoints")
        store.save(snapshot(1))
        for path in (Path(base), *Path(base).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        done = run_script(READ_ONLY, args=[store.folder])
        assert done.returncode == 0, done.stderr
        saved, deleted, below, step = json.loads(done.stdout)
        assert saved[0] == below[0] == "EACCES"
        assert "Permission denied (errno 13)" in saved[4]
        assert "could not be deleted" in deleted[1]
        assert step == 1
        first(store)


def test_a_file_system_that_is_read_only_is_named(small_disk: Path) -> None:
    store = Store(small_disk / "checkpoints")
    store.save(snapshot(1))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(CheckpointWriteError, match="Read-only file system") as caught:
        store.save(snapshot(2))
    assert caught.value.errno == errno.EROFS
    with pytest.raises(CheckpointError, match="Read-only file system"):
        store.delete(store.checkpoints()[0])
    first(store)


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_sync_that_fails_is_an_error_and_what_was_written_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, at: int
) -> None:
    real, calls = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(code, os.strerror(code))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)  # no disk here can be made to fail
    with pytest.raises(CheckpointWriteError) as caught:
        store.save(snapshot(2))
    assert caught.value.errno == code
    if at < 6:
        first(store)
    else:  # the last sync, of the parent: it is there whole and has its name, which a power cut might take
        assert len(store.checkpoints()) == 2
        assert store.rejected() == store.sweep() == []


def test_ctrl_c_in_the_middle_of_a_save_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, 0

    def write(file: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(KeyboardInterrupt):
        store.save(snapshot(2))
    first(store)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    store = Store(tmp_path / "checkpoints")
    with pytest.raises(CheckpointWriteError, match="checkpoints"):
        store.save(snapshot(1))
    with pytest.raises(CheckpointError, match="cannot be read: Not a directory"):
        store.checkpoints()


def opened() -> Iterator[str]:
    """What the descriptors of this process lead to: many are of other tests, and go when the garbage is collected."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            yield os.readlink(f"/proc/self/fd/{number}")


def test_no_descriptor_is_left_open_whatever_failed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(snapshot(2))
    store.load(store.checkpoints()[0])
    (store.folder / "step-00000001" / "state.json").write_text("x")
    for _ in range(3):
        with pytest.raises(CheckpointError):
            store.load(store.folder / "step-00000001")
    assert len(store.checkpoints()) == 1

    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointWriteError):
        store.save(snapshot(3))
    assert [target for target in opened() if target.startswith(str(store.folder))] == []
