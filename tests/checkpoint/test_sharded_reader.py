"""A sharded checkpoint is read without running any code that it holds; whatever is wrong with it is an error."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as torch_metadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.state_dict_saver import save

from hookline.checkpoint import About, Manifest, Snapshot, Store
from hookline.checkpoint.foreign_weights import read_weights
from hookline.checkpoint.hashed_file import FileRecord, HashedReader
from hookline.checkpoint.shard_writer import _Writer
from hookline.errors import CheckpointCorruptError, CheckpointError

ABOUT = About(step=5, epoch=0, batch=5, sample=5, seconds=1.0, run="demo")
INDEX, SHARD = ".metadata", "__0_0.distcp"


def record(path: Path) -> FileRecord:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with HashedReader(str(path), path.name, folder) as file:
            file.finish()
            return FileRecord(file.size, file._digest.hexdigest())
    finally:
        os.close(folder)


def seal(folder: Path) -> None:
    """Hashes that fit what is there now: the manifest does not stand in the way of whoever changed it."""
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    files = MappingProxyType({name: record(folder / name) for name in sorted(names)})
    (folder / "manifest.json").write_bytes(Manifest(ABOUT, files, 1.0).to_bytes())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What two tensors of ranks and one plain one look like; one process stands in for the ranks here."""
    store = Store(tmp_path / "checkpoints")
    folder = store.save(Snapshot(ABOUT, {"plain": torch.ones(2)}, {"lr": 0.1})).path
    tensors = {"weights/a": torch.arange(6.0).reshape(2, 3), "weights/b": torch.arange(4)}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with pytest.warns(UserWarning, match="single process"):
        save(tensors, storage_writer=_Writer(folder), planner=planner, no_dist=True)
    seal(folder)
    return folder


def index_of(folder: Path) -> Any:
    return pickle.loads((folder / INDEX).read_bytes())


def put_index(folder: Path, index: Any) -> None:
    (folder / INDEX).write_bytes(index if isinstance(index, bytes) else pickle.dumps(index, protocol=4))
    seal(folder)


def refused(folder: Path, canary: Path) -> str:
    """All ways to read it refuse it, and none runs what it holds; the reason."""
    store = Store(folder.parent)
    with pytest.raises(CheckpointError) as raised:
        store.load(folder)
    with pytest.raises(CheckpointError):
        read_weights(folder)
    assert not canary.exists()
    assert isinstance(raised.value, CheckpointCorruptError)
    return str(raised.value)


def test_it_is_read_whole_where_nobody_has_changed_it(checkpoint: Path) -> None:
    store = Store(checkpoint.parent)
    found = store.load(checkpoint)
    assert torch.equal(found.weights["a"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(found.weights["b"], torch.arange(4))
    assert set(found.weights) == {"plain", "a", "b"}
    assert set(read_weights(checkpoint)) == {"plain", "a", "b"}
    store.verify(checkpoint)
    assert [its.name for its in store.checkpoints()] == [checkpoint.name]


# -- pickles that would run something ------------------------------------------------------------


class Runs:
    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._what = call, args

    def __reduce__(self) -> Any:
        return self._what


def text(value: str) -> bytes:
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def global_(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


METADATA = "torch.distributed.checkpoint.metadata"
PROTO = b"\x80\x04"
TOUCH = "open({!r}, 'w').close()"


def payloads(canary: Path) -> dict[str, bytes]:
    command, code = f"touch {canary}", TOUCH.format(str(canary))
    nested = io.BytesIO()
    torch.save(Runs(os.system, command), nested)
    inside = torch_metadata.Metadata({}, storage_data={}, planner_data=Runs(os.system, command))
    deep = torch_metadata.Metadata({"weights/a": Runs(exec, code)}, storage_data={})
    return {
        "os.system": pickle.dumps(Runs(os.system, command)),
        "exec": pickle.dumps(Runs(exec, code)),
        "eval": pickle.dumps(Runs(eval, f"__import__('os').system({command!r})")),
        "old protocol": pickle.dumps(Runs(os.system, command), protocol=0),
        "os.system by GLOBAL": b"cposix\nsystem\n(V" + command.encode() + b"\ntR.",
        "os.system by INST": b"(V" + command.encode() + b"\niposix\nsystem\n.",
        "os.system by OBJ": b"(cposix\nsystem\nV" + command.encode() + b"\no.",
        "a nested torch.load": pickle.dumps(Runs(torch.storage._load_from_bytes, nested.getvalue())),
        "a planner's data": pickle.dumps(inside),
        "in place of a tensor": pickle.dumps(deep),
        "in place of a key": pickle.dumps(torch_metadata.Metadata({}, storage_data={Runs(exec, code): None})),  # type: ignore[dict-item]
        "getattr": PROTO + global_("builtins", "getattr") + global_("os", "system") + text("__call__") + b"\x86R.",
        "a dotted name": PROTO + global_(METADATA, "os.system") + text(command) + b"\x85R.",
        "a module of a module": PROTO + global_(f"{METADATA}.os", "system") + text(command) + b"\x85R.",
        "partial": pickle.dumps(Runs(__import__("functools").partial, os.system, command)),
        "import": pickle.dumps(Runs(__import__("importlib").import_module, "antigravity")),
        "a class is changed": PROTO + global_(METADATA, "Metadata") + b"N}" + text("__init__")
        + global_(METADATA, "StorageMeta") + b"s\x86b.",
        "a class is called": PROTO + global_(METADATA, "Metadata") + text("x") + b"\x85R.",
        "a persistent id": PROTO + text("x") + b"Q.",
        "an extension": PROTO + b"\x82\x01.",
        "memory by a memo": PROTO + b"Nr\xff\xff\xff\x7f.",
        "memory by a byte array": b"\x80\x05\x96" + (2**46).to_bytes(8, "little") + b".",
        "cut": pickle.dumps(torch_metadata.Metadata({}))[:40],
        "empty": b"",
        "no pickle": b"not a pickle at all",
        "something behind it": pickle.dumps(torch_metadata.Metadata({}, storage_data={})) + b"x",
        "a list": pickle.dumps([1, 2]),
        "a key whose hash takes for ever": PROTO + b"})\x94"
        + b"".join(b"h" + bytes([level]) + b"\x86\x94" for level in range(60)) + b"Ns.",
        "nested a million deep": PROTO + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    }  # fmt: skip


@pytest.mark.parametrize("name", payloads(Path("canary")))
def test_an_index_that_would_run_code_is_refused_and_runs_none(checkpoint: Path, tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    put_index(checkpoint, payloads(canary)[name])
    assert INDEX in refused(checkpoint, canary)


def test_what_one_index_does_to_what_it_is_given_is_gone_with_it(checkpoint: Path, tmp_path: Path) -> None:
    whole = (checkpoint / INDEX).read_bytes()
    defaults = b"N}" + text("__defaults__") + text("x") + b"\x85s\x86b"
    for name in ("_MEM_FORMAT_ENCODING", "Metadata"):
        put_index(checkpoint, PROTO + global_(METADATA, name) + defaults + b".")
        refused(checkpoint, tmp_path / "canary")
        put_index(checkpoint, whole)
        Store(checkpoint.parent).verify(checkpoint)


@pytest.mark.parametrize("name", ["os.system", "exec", "os.system by GLOBAL", "os.system by INST", "a planner's data"])
def test_another_reader_would_have_run_it(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    pickle.loads(payloads(canary)[name])
    assert canary.exists()


# -- an index that lies --------------------------------------------------------------------------


def lies() -> dict[str, Callable[[Any], Any]]:
    def place(**changed: Any) -> Callable[[Any], Any]:
        def act(index: Any) -> None:
            key = next(iter(index.storage_data))
            index.storage_data[key] = replace(index.storage_data[key], **changed)

        return act

    def tensor(**changed: Any) -> Callable[[Any], Any]:
        def act(index: Any) -> None:
            index.state_dict_metadata["weights/a"] = replace(index.state_dict_metadata["weights/a"], **changed)

        return act

    def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Callable[[Any], Any]:
        return tensor(chunks=[torch_metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))])

    def overlapping(index: Any) -> None:
        """As many numbers as the shape has: the first row twice, in a place of its own, and the second nowhere."""
        rows = [((0, 0), (1, 3)), ((0, 1), (1, 2)), ((1, 0), (1, 1))]
        chunks = [torch_metadata.ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in rows]
        tensor(chunks=chunks)(index)
        (key,) = [key for key in index.storage_data if key.fqn == "weights/a"]
        place = index.storage_data.pop(key)
        for offsets, _ in rows:
            index.storage_data[torch_metadata.MetadataIndex("weights/a", torch.Size(offsets))] = place

    def renamed(index: Any) -> None:
        index.state_dict_metadata["c"] = index.state_dict_metadata.pop("weights/b")
        for key in list(index.storage_data):
            if key.fqn == "weights/b":
                index.storage_data[torch_metadata.MetadataIndex("c", key.offset)] = index.storage_data.pop(key)

    return {
        "a path that leads out": place(relative_path="../../../etc/passwd"),
        "an absolute path": place(relative_path="/etc/passwd"),
        "a file that is not of the checkpoint": place(relative_path="__7_0.distcp"),
        "another file of it": place(relative_path="model.safetensors"),
        "no file": place(relative_path=None),
        "a place behind the end": place(offset=10**12),
        "a place before the beginning": place(offset=-1),
        "a length without end": place(length=2**61),
        "a length that is too short": place(length=3),
        "a place that is no number": place(offset=1.5),
        "an encoding": place(transform_descriptors=["zstd"]),
        "a shape that is too large": tensor(size=torch.Size([2**40, 3])),
        "a part beyond the shape": chunk((1, 0), (2, 3)),
        "a part of other dimensions": chunk((0,), (6,)),
        "a part that is not all": chunk((0, 0), (1, 3)),
        "two parts of one place": overlapping,
        "no parts": tensor(chunks=[]),
        "another dtype": tensor(properties=torch_metadata.TensorProperties(torch.float64)),
        "an object": lambda index: index.state_dict_metadata.update(x=torch_metadata.BytesStorageMetadata()),
        "a part without a tensor": lambda index: index.state_dict_metadata.pop("weights/b"),
        "a tensor without a place": lambda index: index.storage_data.clear(),
        "a name that is neither of weights nor of the state": renamed,
        "data of a planner": lambda index: setattr(index, "planner_data", {"a": ("a",)}),
        "nothing at all": lambda index: setattr(index, "storage_data", None),
    }


@pytest.mark.parametrize("name", lies())
def test_an_index_that_lies_about_its_files_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    index = index_of(checkpoint)
    lies()[name](index)
    put_index(checkpoint, index)
    refused(checkpoint, tmp_path / "canary")


# -- parts that are not what they seem -----------------------------------------------------------


def put_part(folder: Path, data: bytes) -> None:
    """In place of the first part of ``weights/a``, wherever that is."""
    index = index_of(folder)
    key = next(key for key in index.storage_data if key.fqn == "weights/a")
    with (folder / SHARD).open("ab") as file:
        begin = file.tell()
        file.write(data)
    index.storage_data[key] = _StorageInfo(SHARD, begin, len(data))
    put_index(folder, index)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def packed(data: bytes) -> bytes:
    """The same file with its entries packed: a few bytes may then stand for as many as one likes."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


def parts(canary: Path) -> dict[str, bytes]:
    size = 400
    return {
        "code": saved(Runs(os.system, f"touch {canary} # {'x' * size}")),
        "code beside a tensor": saved([torch.zeros(2, 3), Runs(exec, TOUCH.format(str(canary)))]),
        "an old pickle": pickle.dumps(Runs(os.system, f"touch {canary} # {'x' * size}")),
        "a tensor of another shape": saved(torch.zeros(3, 2)),
        "a tensor of another dtype": saved(torch.zeros(2, 3, dtype=torch.float64)),
        "a number": saved(5.0),
        "a packed tensor": packed(saved(torch.zeros(2, 3))),
        "noise": os.urandom(size),
        "half of it": saved(torch.zeros(2, 3))[:600],
    }


@pytest.mark.parametrize("name", parts(Path("canary")))
def test_a_part_that_is_not_the_tensor_of_the_index_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    put_part(checkpoint, parts(canary)[name])
    assert SHARD in refused(checkpoint, canary)


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [INDEX, SHARD])
def test_a_changed_bit_is_found_by_the_hash(checkpoint: Path, tmp_path: Path, file: str) -> None:
    data = bytearray((checkpoint / file).read_bytes())
    data[len(data) // 2] ^= 4
    (checkpoint / file).write_bytes(data)
    assert "SHA-256" in refused(checkpoint, tmp_path / "canary")
    with pytest.raises(CheckpointCorruptError):
        Store(checkpoint.parent).verify(checkpoint)


@pytest.mark.parametrize("file", [INDEX, SHARD])
def test_a_file_that_is_gone_or_a_link_is_refused(checkpoint: Path, tmp_path: Path, file: str) -> None:
    kept = (checkpoint / file).read_bytes()
    (checkpoint / file).unlink()
    refused(checkpoint, tmp_path / "canary")
    (tmp_path / "elsewhere").write_bytes(kept)
    (checkpoint / file).symlink_to(tmp_path / "elsewhere")
    refused(checkpoint, tmp_path / "canary")


def test_a_manifest_with_ranks_files_but_no_index_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / INDEX).unlink()
    seal(checkpoint)
    assert "come together" in refused(checkpoint, tmp_path / "canary")


def test_what_a_killed_run_left_of_ranks_files_is_swept_and_foreign_files_are_not(checkpoint: Path) -> None:
    store = Store(checkpoint.parent)
    torn = checkpoint.parent / f"step-00000009.tmp-{'a' * 32}"
    torn.mkdir()
    for name in (SHARD, "__11_0.distcp", f"{INDEX}.tmp"):
        (torn / name).write_bytes(b"half")
    foreign = checkpoint.parent / f"step-00000010.tmp-{'b' * 32}"
    foreign.mkdir()
    (foreign / "__a_0.distcp").write_bytes(b"mine")
    with pytest.warns(UserWarning, match="__a_0"):
        assert store.sweep() == [torn]
    assert foreign.exists()
    assert [its.name for its in store.checkpoints()] == [checkpoint.name]
