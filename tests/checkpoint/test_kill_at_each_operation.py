"""SIGKILL at each file operation of a save and of the deletes after it, one by one: the old or the new is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookline.testing import run_script

# torch is imported once; each child is forked from there, counts its operations and kills itself at one of them.
SCRIPT = """
import json, os, shutil, signal, sys, warnings
from pathlib import Path
import torch
from hookline.checkpoint import About, Snapshot, Store

OPERATIONS = ["open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "listdir", "scandir", "statvfs"]
base, layout, after = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "after"
warnings.simplefilter("error")

def snapshot(step):
    about = About(step=step, epoch=0, batch=0, sample=0, seconds=0.0, run="r", metrics={"loss": 1.0})
    weights = {"w": torch.full((100,), float(step)), "b": torch.full((3,), float(step))}
    state = {"m": [torch.full((5,), float(step))], "step": step}
    return Snapshot(about, weights, None if layout == "weights" else state)

def save_and_delete(folder):
    store = Store(folder)
    new = store.save(snapshot(2))
    for old in store.checkpoints():
        if old != new:
            store.delete(old)
    return new

def count_down(until):
    left = [until]
    names = []
    def wrapped(name):
        real = getattr(os, name)
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            names.append(name)
            return result
        return call
    for name in OPERATIONS:
        setattr(os, name, wrapped(name))
    return names

def whole(checkpoint, store):
    loaded = store.load(checkpoint)
    step = loaded.about.step
    assert (loaded.weights["w"] == step).all() and (loaded.weights["b"] == step).all()
    assert loaded.state is None or (loaded.state["step"] == step and (loaded.state["m"][0] == step).all())
    return step

def child(folder, until):
    pid = os.fork()
    if not pid:
        try:
            names = count_down(until)
            save_and_delete(folder)
            os._exit(3)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(4)
    return os.waitpid(pid, 0)[1]

found, until, ended = [], 0, False
while not ended:
    until += 1
    folder = base / str(until)
    store = Store(folder)
    if layout != "first":
        store.save(snapshot(0))
        store.save(snapshot(1))
    status = child(folder, until)
    ended = os.WIFEXITED(status)
    assert status in (signal.SIGKILL, 3 << 8), (until, status)
    steps = [whole(item, store) for item in store.checkpoints()]
    newest = store.newest_valid(strict=True)
    swept = [path.name for path in store.sweep()]
    left = sorted(os.listdir(folder)) if folder.exists() else []
    assert left == sorted(item.name for item in store.checkpoints()), (until, left)
    assert store.rejected() == [], (until, store.rejected())
    again = whole(save_and_delete(folder), store)  # and the next start saves and deletes as ever
    assert again == 2 and len(store.checkpoints()) == 1
    found.append([until, steps, newest and newest.about.step, len(swept)])
    shutil.rmtree(folder)
print(json.dumps(found))
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("layout", ["full", "weights", "first"])
def test_the_old_or_the_new_checkpoint_is_there_whatever_operation_was_the_last(
    layout: str, when: str, tmp_path: Path
) -> None:
    done = run_script(SCRIPT, args=[tmp_path, layout, when], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert len(found) > (30 if layout == "full" else 20)
    newest = [row[2] for row in found]
    older = None if layout == "first" else 1
    assert set(newest) == {older, 2}
    assert newest == sorted(newest, key=lambda step: step or 0), "once the new one is there it stays"
    if older:
        assert all(steps for _, steps, _, _ in found), "never neither"
    assert any(swept for _, _, _, swept in found), "some were killed in the middle"
    assert found[-1][1] == [2]
