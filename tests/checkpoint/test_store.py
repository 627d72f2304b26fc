"""The store of a run: what is saved is found in its order, checked, and never written over."""

from __future__ import annotations

import math
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookline.checkpoint import About, Checkpoint, Snapshot, Store
from hookline.checkpoint.names import temporary_of, trash_of
from hookline.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    HooklineWarning,
    SetupError,
    StateError,
)
from hookline.testing import run_script, start_script


def about(step: int, **more: Any) -> About:
    return About(**{"step": step, "epoch": 1, "batch": 2, "sample": 64, "seconds": 1.5, "run": "r", **more})


def snapshot(step: int, *, state: Any = None, **more: Any) -> Snapshot:
    weights = {"weight": torch.full((4, 3), float(step)), "bias": torch.arange(3)}
    return Snapshot(about(step, **more), weights, {"momentum": torch.ones(5) * step} if state is None else state)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run" / "checkpoints")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_saved_is_loaded_with_all_that_is_known_of_it(store: Store) -> None:
    metrics = {"loss": 0.25, "nan": math.nan, "inf": math.inf, "ä/b": -1.5}
    told = about(
        7, generation=2, metrics=metrics, exact=False, pending_eval=True, finished=True, environment={"n": (1, 2)}
    )
    state = {"lr": 0.1, 3: [torch.ones(2)], "none": None}
    saved = store.save(Snapshot(told, {"w": torch.ones(2, 2)}, state))
    loaded = store.load(saved)
    assert repr(loaded.about) == repr(told)
    assert loaded.weights["w"].tolist() == [[1, 1], [1, 1]]
    assert repr(loaded.state) == repr(state)


def test_a_checkpoint_of_weights_only_has_no_state(store: Store) -> None:
    saved = store.save(Snapshot(about(1), {"w": torch.ones(2)}))
    assert saved.weights_only
    assert store.load(saved).state is None
    assert sorted(os.listdir(saved.path)) == ["manifest.json", "model.safetensors"]


def test_a_store_that_nothing_was_saved_in_is_empty_and_makes_no_folder(store: Store) -> None:
    assert store.checkpoints() == store.rejected() == store.sweep() == []
    assert store.latest() is store.best("loss") is store.newest_valid() is store.load_newest() is None
    assert not store.folder.exists()


def test_what_is_found_is_what_save_gave_back(store: Store) -> None:
    saved = store.save(snapshot(5, metrics={"loss": 1.0}))
    assert store.checkpoints() == [saved]
    assert {saved} == set(store.checkpoints())
    assert saved.name == "step-00000005"
    assert saved.size == sum(f.stat().st_size for f in saved.path.iterdir() if f.name != "manifest.json")


def test_the_same_state_is_the_same_bytes(store: Store) -> None:
    state = {"set": {"a", "b", "c", 1, 2}, "m": torch.ones(3), "d": {3: 1, "x": None}}
    first, second = (store.save(snapshot(5, state=state)) for _ in range(2))
    assert first.manifest.files == second.manifest.files


def test_files_and_folders_are_their_owners_alone(store: Store) -> None:
    saved = store.save(snapshot(5))
    assert stat.S_IMODE(saved.path.stat().st_mode) == stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in saved.path.iterdir()} == {0o600}


def test_the_latest_is_the_highest_generation_then_step_and_not_the_last_saved(store: Store) -> None:
    for generation, step in [(0, 300), (1, 200), (0, 100), (1, 150)]:
        store.save(snapshot(step, generation=generation))
    order = [(found.about.generation, found.about.step) for found in store.checkpoints()]
    assert order == [(0, 100), (0, 300), (1, 150), (1, 200)]
    latest = store.latest()
    assert latest is not None
    assert latest.name == "step-00000200-g1"


def test_an_inexact_one_is_passed_over_unless_it_is_asked_for(store: Store) -> None:
    good = store.save(snapshot(1))
    bad = store.save(snapshot(2, exact=False))
    assert store.latest() == store.newest_valid() == good
    assert store.latest(exact=False) == store.newest_valid(exact=False) == bad


def test_a_second_save_at_the_same_step_gets_a_number_and_is_the_newer(store: Store) -> None:
    first, second = store.save(snapshot(5)), store.save(snapshot(5))
    third, fourth = store.save(snapshot(5), "mine"), store.save(snapshot(5), "mine")
    assert [item.name for item in (first, second, third, fourth)] == [
        "step-00000005",
        "step-00000005-2",
        "mine",
        "mine-2",
    ]
    assert store.checkpoints() == [first, second, third, fourth]


def test_whatever_has_the_name_already_is_left_as_it_is(store: Store) -> None:
    store.folder.mkdir(parents=True)
    (store.folder / "step-00000005").write_text("a file")
    (store.folder / "step-00000005-2").mkdir()
    (store.folder / "step-00000005-3").symlink_to("nowhere")
    assert store.save(snapshot(5)).name == "step-00000005-4"
    assert (store.folder / "step-00000005").read_text() == "a file"
    assert os.listdir(store.folder / "step-00000005-2") == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/tmp/x",
        "a..b",
        ".hidden",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 201,
        "ü" * 101,
        "a.tmp-" + "0" * 32,
    ],
)
def test_a_name_that_could_leave_the_folder_or_hide_is_refused(store: Store, name: str) -> None:
    with pytest.raises(SetupError, match="is not a valid name of a checkpoint"):
        store.save(snapshot(1), name)
    assert not store.folder.exists()


def test_a_long_name_in_any_language_fits(store: Store) -> None:
    saved = store.save(snapshot(1), "ü" * 100)
    store.delete(saved)
    assert os.listdir(store.folder) == []


def test_best_is_by_the_metric_and_never_nan(store: Store) -> None:
    values = [math.nan, 0.5, 0.2, 0.2, 0.9, math.inf]
    saved = [store.save(snapshot(step, metrics={"loss": value})) for step, value in enumerate(values)]
    saved.append(store.save(snapshot(99, metrics={"other": 0.0})))
    assert store.best("loss") == saved[2]
    assert store.best("loss", "max") == saved[5]
    with pytest.raises(
        CheckpointNotFoundError, match=r"none of 7 checkpoints has a value of 'accuracy'\. Available: loss, other"
    ):
        store.best("accuracy")
    with pytest.raises(SetupError, match=r"Store\.best\(mode='lowest'\): must be"):
        store.best("loss", "lowest")


def test_a_checkpoint_can_be_moved_away_and_loaded_by_its_path(store: Store, tmp_path: Path) -> None:
    saved = store.save(snapshot(3))
    moved = tmp_path / "elsewhere"
    shutil.move(saved.path, moved)
    assert store.load(moved).about.step == Store(tmp_path).load(str(moved)).about.step == 3
    store.verify(moved)
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        store.load(saved)


def test_a_state_that_cannot_be_saved_leaves_no_trace(store: Store) -> None:
    with pytest.raises(StateError, match=r"^callbacks/Mine: a lambda cannot be saved"):
        store.save(snapshot(1, state={"callbacks": {"Mine": lambda: 0}}))
    with pytest.raises(StateError, match="about/environment/x: a manifest cannot contain a tensor"):
        store.save(snapshot(1, environment={"x": torch.ones(1)}))
    with pytest.raises(StateError, match="too large"):
        store.save(snapshot(1, state={"long": [0] * 2_000_001}))
    assert not store.folder.exists() or os.listdir(store.folder) == []


# -- damaged ones --------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_tensor_is_found_when_it_is_loaded_or_verified(store: Store) -> None:
    saved = store.save(snapshot(3))
    flip(saved.path / "model.safetensors", -1)
    assert store.checkpoints() == [saved]  # listing looks at sizes only
    for look in (store.load, store.verify):
        with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors: its SHA-256"):
            look(saved)


def test_the_newest_valid_one_is_used_and_the_damaged_ones_are_named(store: Store) -> None:
    saved = [store.save(snapshot(step)) for step in (1, 2, 3, 4)]
    flip(saved[3].path / "state.safetensors", -1)
    (saved[2].path / "manifest.json").unlink()
    for newest in (store.newest_valid, store.load_newest):
        with pytest.warns(HooklineWarning) as warned:
            found: Any = newest()
        assert (found if isinstance(found, Checkpoint) else found[0]) == saved[1]
        text = str(warned[0].message)
        assert len(warned) == 1
        assert "Using step-00000002." in text
        assert "step-00000003 (manifest.json: it is missing)" in text
        assert "step-00000004 (state.safetensors: its SHA-256" in text
        with pytest.raises(CheckpointCorruptError, match="step-00000003"):
            newest(strict=True)


def test_strict_refuses_when_the_newest_is_damaged_and_not_when_all_is_well(store: Store) -> None:
    old, new = store.save(snapshot(1)), store.save(snapshot(2))
    assert store.newest_valid(strict=True) == new
    flip(new.path / "model.safetensors", -1)
    with pytest.raises(CheckpointCorruptError, match=r"strict=True: step-00000002 \(model\.safetensors"):
        store.newest_valid(strict=True)
    with pytest.warns(HooklineWarning, match=r"Using step-00000001\."):
        assert store.newest_valid() == old


def test_if_none_is_valid_that_is_an_error_and_not_a_new_start(store: Store) -> None:
    saved = store.save(snapshot(1))
    flip(saved.path / "model.safetensors", -1)
    with pytest.raises(CheckpointCorruptError, match="no valid checkpoint; damaged: step-00000001"):
        store.load_newest()


def test_what_is_rejected_says_why(store: Store) -> None:
    names = ["missing", "extra", "short", "link", "folder", "empty", "unreadable"]
    saved = {name: store.save(snapshot(1), name).path for name in names}
    (saved["missing"] / "state.json").unlink()
    (saved["extra"] / "notes.txt").write_text("mine")
    size = (saved["short"] / "model.safetensors").stat().st_size
    os.truncate(saved["short"] / "model.safetensors", 10)
    (saved["link"] / "state.json").rename(store.folder / "state.json")
    (saved["link"] / "state.json").symlink_to(store.folder / "state.json")
    (saved["folder"] / "state.json").unlink()
    (saved["folder"] / "state.json").mkdir()
    for file in saved["empty"].iterdir():
        file.unlink()
    (saved["unreadable"] / "manifest.json").write_text("{}")
    (store.folder / "latest").symlink_to(saved["missing"])
    reasons = {item.path.name: item.reason for item in store.rejected()}
    assert reasons == {
        "missing": "state.json: it is missing",
        "extra": "notes.txt: it is in the folder, but not in the manifest",
        "short": f"model.safetensors: it has 10 bytes, but the manifest says {size:,}",
        "link": "state.json: it is a symbolic link",
        "folder": "state.json: it is not a file",
        "empty": "manifest.json: it is missing",
        "unreadable": "manifest.json: it does not start with its own SHA-256, as a manifest does",
        "latest": "latest: it is a symbolic link",
    }
    assert store.checkpoints() == []


def test_a_pipe_in_place_of_a_file_does_not_block(store: Store) -> None:
    saved = store.save(snapshot(1))
    for name in ("model.safetensors", "manifest.json"):
        (saved.path / name).unlink()
        os.mkfifo(saved.path / name)
        with pytest.raises(CheckpointCorruptError, match=name.replace(".", r"\.")):
            store.load(saved.path)


def test_a_folder_that_is_no_checkpoint_and_a_file_are_clear_errors(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointCorruptError, match=r"file: it is not a folder\. A checkpoint is a folder"):
        store.load(tmp_path / "file")
    with pytest.raises(CheckpointCorruptError, match=r"manifest\.json: it is missing"):
        store.load(tmp_path / "empty")


# -- deleting and sweeping ------------------------------------------------------------------------------


def test_a_deleted_one_is_gone_and_the_others_stay(store: Store) -> None:
    first, second = store.save(snapshot(1)), store.save(snapshot(2))
    store.delete(first)
    assert store.checkpoints() == [second]
    assert os.listdir(store.folder) == [second.name]
    with pytest.raises(CheckpointNotFoundError, match="cannot be deleted"):
        store.delete(first)


def test_only_a_stores_own_checkpoints_can_be_deleted(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other").save(snapshot(1))
    with pytest.raises(CheckpointError, match="only its own checkpoints"):
        store.delete(other)
    assert other.path.exists()


def test_sweeping_removes_what_was_left_of_ours_and_nothing_else(store: Store, tmp_path: Path) -> None:
    saved = store.save(snapshot(1))
    left = [store.folder / name for name in (temporary_of("step-3"), trash_of("step-2"), temporary_of("a.tmp-b"))]
    for folder in left:
        shutil.copytree(saved.path, folder)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "manifest.json").write_text("mine")
    hexes = "0" * 32
    others = ["a.tmp-1", "x.tmp-" + "g" * 32, ".trash-" + hexes, ".tmp-" + hexes, "notes", f"x.tmp-{hexes}.old"]
    for name in others:
        (store.folder / name).mkdir()
    (store.folder / temporary_of("link")).symlink_to(target)
    (store.folder / temporary_of("file")).write_text("mine")
    before = set(os.listdir(store.folder))
    assert set(store.sweep()) == set(left)
    assert set(os.listdir(store.folder)) == before - {folder.name for folder in left}
    assert (target / "manifest.json").read_text() == "mine"
    assert store.checkpoints() == [saved]
    assert {item.path.name for item in store.rejected()} >= {"a.tmp-1", "notes"}


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_temporary_that_holds_something_foreign_is_left_and_named(store: Store, kind: str, tmp_path: Path) -> None:
    store.save(snapshot(1))
    left = store.folder / temporary_of("step-3")
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    if kind == "file":
        (left / "notes.txt").write_text("mine")
    elif kind == "folder":
        (left / "state.json").mkdir()
    else:
        (left / "state.json").symlink_to(tmp_path)
    with pytest.warns(HooklineWarning, match=r"contains the other file '(notes\.txt|state\.json)'"):
        assert store.sweep() == []
    assert len(os.listdir(left)) == 2


def test_reading_while_another_deletes_gives_a_whole_checkpoint_or_a_clear_error(store: Store) -> None:
    saved = store.save(snapshot(1))
    listed = store.checkpoints()
    store.delete(saved)
    with pytest.raises(CheckpointNotFoundError):
        store.load(listed[0])


WRITER = """
import itertools, sys
from pathlib import Path
import torch
from hookline.checkpoint import About, Snapshot, Store
store = Store(sys.argv[1])
for step in itertools.count(1):
    if Path(sys.argv[2]).exists():
        break
    about = About(step=step, epoch=0, batch=0, sample=0, seconds=0.0, run="r")
    new = store.save(Snapshot(about, {"w": torch.full((1000,), float(step))}, {"step": step}))
    for old in store.checkpoints()[:-2]:
        store.delete(old)
    if step == 1:
        print("begun", flush=True)
"""


def test_a_reader_sees_whole_checkpoints_only_while_another_process_saves_and_deletes(
    store: Store, tmp_path: Path
) -> None:
    steps: list[int] = []
    enough = tmp_path / "enough"
    with start_script(WRITER, args=[store.folder, enough]) as script:
        script.wait_for("begun")
        while len(set(steps)) < 30:
            assert script.process.poll() is None, script.stderr
            assert store.rejected() == []
            found = store.load_newest(strict=True)
            assert found is not None
            steps.append(found[0].about.step)
            assert found[1].weights["w"].tolist() == [float(steps[-1])] * 1000
            for listed in store.checkpoints():
                try:
                    store.verify(listed)
                except CheckpointNotFoundError:
                    continue  # deleted since it was listed, and it says so
        enough.touch()
        assert script.finish().returncode == 0, script.stderr
    assert steps == sorted(steps)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from("sdk")), max_size=12))
def test_after_any_saves_and_deletes_the_folder_lists_what_is_left(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[int, int, str]]
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    kept: list[Checkpoint] = []
    for generation, step, act in acts:
        if act == "d" and kept:
            store.delete(kept.pop(step % len(kept)))
        else:
            kept.append(store.save(Snapshot(about(step, generation=generation), {"w": torch.ones(1)})))
        assert {item.name for item in store.checkpoints()} == {item.name for item in kept}
    order = [(item.about.generation, item.about.step, item.manifest.created) for item in store.checkpoints()]
    assert order == sorted(order)
    assert store.rejected() == store.sweep() == []


NO_PICKLE = """
import pickle, sys
import torch
from hookline.checkpoint import Store

def refuse(*args, **kwargs):
    raise RuntimeError("pickle was used")

class Unpickler:
    __init__ = refuse

pickle.load = pickle.loads = pickle._load = pickle._loads = refuse
pickle.Unpickler = pickle._Unpickler = Unpickler
torch.load = torch.serialization.load = refuse
import _pickle
_pickle.load = _pickle.loads = refuse
_pickle.Unpickler = Unpickler

store = Store(sys.argv[1])
store.verify(store.latest())
checkpoint, snapshot = store.load_newest()
print(checkpoint.name, snapshot.state["optimizer"]["state"][0]["exp_avg"].tolist(), snapshot.state["random"][1][:2])
"""


def test_a_full_load_works_where_pickle_is_disabled(store: Store) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "random": (3, tuple(range(625)), None)}
    store.save(Snapshot(about(3), model.state_dict(), state))
    done = run_script(NO_PICKLE, args=[store.folder])
    assert done.returncode == 0, done.stderr
    exp_avg = optimizer.state_dict()["state"][0]["exp_avg"].tolist()
    assert done.stdout == f"step-00000003 {exp_avg} (0, 1)\n"
