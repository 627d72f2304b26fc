"""Every bad checkpoint gives a clear error that names the file, without running anything and without growing."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.checkpoint import Snapshot, Store
from hookline.errors import CheckpointError
from hookline.testing import run_script


def _neighbour(name: str) -> ModuleType:
    """A module beside this one: tests are imported by their path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle looks its classes up there
    spec.loader.exec_module(module)
    return module


bad = _neighbour("bad_checkpoints")
NAMES = list(bad.cases(Path("/canary")))
MUTATIONS = 2000 if os.environ.get("HOOKLINE_CHAOS") else 100
ROOM = 256 * 2**20
"""What may be allocated beyond what a process has that has imported torch."""

LOAD = """
import json, os, resource, sys
from pathlib import Path
import torch
from hookline.checkpoint import Store
from hookline.errors import CheckpointError

base, room = Path(sys.argv[1]), int(sys.argv[2])
good = Store(base)
good.load(good.folder / "good")  # whatever is imported late is imported now
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + room
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = {}
for folder in sorted((base / "bad").iterdir()):
    store = Store(folder)
    tries = {"load": lambda: store.load(folder / "it"), "newest": lambda: store.load_newest(strict=True)}
    for name, act in tries.items():
        try:
            act()
            result = ["loaded"]
        except CheckpointError as error:
            result = ["refused", type(error).__name__, str(error)]
        except BaseException as error:
            result = ["wrong", type(error).__name__, str(error)[:300]]
        found.setdefault(folder.name, {})[name] = result
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def results(place: Path) -> list[Any]:
    """What a fresh process with little memory makes of each."""
    made = bad.good(place / "made")
    made.rename(place / "good")
    for index, damage in enumerate(bad.cases(place / "canary").values()):
        path = place / "bad" / f"{index:03d}" / "it"
        shutil.copytree(place / "good", path)
        damage(path)
    done = run_script(LOAD, args=[place, ROOM], timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [found[f"{index:03d}"] for index in range(len(NAMES))]


def test_a_bad_checkpoint_is_refused_with_its_file_and_the_reason(results: list[Any], place: Path) -> None:
    assert not (place / "canary").exists(), "code from a file was run"
    wrong = []
    for index, (name, result) in enumerate(zip(NAMES, results, strict=True)):
        loaded, newest = result["load"], result["newest"]
        folder = f"{place}/bad/{index:03d}/it/"
        is_refused = loaded[:2] == newest[:2] == ["refused", "CheckpointCorruptError"] and loaded[2].startswith(folder)
        file, _, reason = loaded[-1].removeprefix(folder).partition(": ")
        blamed = [known for known in bad.FILES if name.startswith(known)]
        if not is_refused or blamed not in ([], [file]) or not reason:
            wrong.append((name, loaded, newest))
    assert wrong == []


UNPICKLE = """
import pickle, sys
from pathlib import Path
import torch
for file in sorted(Path(sys.argv[1]).iterdir()):
    try:
        torch.load(file, weights_only=False)
    except Exception:
        pickle.loads(file.read_bytes())
    canary = Path(sys.argv[2])
    print(file.name, canary.exists())
    canary.unlink(missing_ok=True)
"""


def test_there_are_more_than_fifty_of_them_and_the_payloads_do_run_where_they_are_unpickled(tmp_path: Path) -> None:
    assert len(NAMES) > 50
    (tmp_path / "files").mkdir()
    payloads = bad.payloads(tmp_path / "canary")
    for kind, data in payloads.items():
        (tmp_path / "files" / kind).write_bytes(data)
    done = run_script(UNPICKLE, args=[tmp_path / "files", tmp_path / "canary"])
    assert done.stdout == "".join(f"{kind} True\n" for kind in sorted(payloads)), done.stderr


def test_text_that_looks_like_code_is_text(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    state = {
        "_instantiator": "os.system",
        "_target_": f"touch {canary}",
        "__reduce__": ["os.system", [f"touch {canary}"]],
    }
    about = bad.About(step=1, epoch=0, batch=0, sample=0, seconds=0.0, run=f"$(touch {canary})")
    store = Store(tmp_path / "store")
    loaded = store.load(store.save(Snapshot(about, {"w": torch.ones(1)}, state)))
    assert loaded.state == state
    assert loaded.about.run == f"$(touch {canary})"
    assert not canary.exists()


# -- random changes ----------------------------------------------------------------------------------------


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What is allocated is bounded; more is a ``MemoryError``, which the test would not take for an answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """A change of the bytes of one file: flipped, cut out, put in, doubled, cut off, or words exchanged."""
    where = st.floats(0, 1)
    kind = draw(st.sampled_from(["flip", "remove", "insert", "double", "truncate", "exchange", "digit"]))
    return kind, draw(where), draw(where), draw(st.binary(min_size=1, max_size=20)), draw(st.integers(0, 7))


WORDS = [
    b"F32",
    b"U8",
    b"I64",
    b"true",
    b"null",
    b"NaN",
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b",",
    b":",
    b"$",
    b"-1",
    b"1e999",
]


def mutated(data: bytes, mutation: Any) -> bytes:
    kind, share, other, fresh, bit = mutation
    at, to = sorted((int(share * len(data)), int(other * len(data))))
    to = min(to, at + 40) if kind != "truncate" else to
    match kind:
        case "flip":
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        case "remove":
            return data[:at] + data[to:]
        case "insert":
            return data[:at] + fresh + data[at:]
        case "double":
            return data[:to] + data[at:]
        case "truncate":
            return data[:at]
        case "exchange":
            word = WORDS[int(other * (len(WORDS) - 1))]
            return data[:at] + word + data[at + len(word) :]
    digits = [index for index, byte in enumerate(data[:2000]) if chr(byte).isdigit()]
    at = digits[int(share * (len(digits) - 1))] if digits else 0
    return data[:at] + fresh.hex().encode()[:3] + data[at + 1 :]


@pytest.mark.usefixtures("little_memory")
@settings(
    max_examples=MUTATIONS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(bad.FILES), st.lists(mutations(), min_size=1, max_size=3), st.booleans())
def test_a_random_change_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[Any], sealed: bool
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    path = bad.good(folder)
    before = (path / name).read_bytes()
    data = before
    for change in changes:
        data = mutated(data, change) if data else data
    (path / name).write_bytes(data)
    sealed = sealed and name != bad.MANIFEST
    if sealed:
        bad.seal(path)
    store = Store(folder)
    try:
        loaded = repr(store.load(path))
    except CheckpointError as error:
        loaded = f"{type(error).__name__}: {error}"
    shutil.rmtree(folder)
    if loaded.startswith("Snapshot"):
        assert sealed or data == before, "changed bytes were taken for good"
    else:
        assert loaded.startswith(f"CheckpointCorruptError: {path}/")
        assert data != before
