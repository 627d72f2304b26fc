"""A sharded checkpoint is read without running any code; whatever is wrong with it is an error that names the file."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.checkpoint import Store
from hookline.checkpoint.foreign_weights import read_weights
from hookline.checkpoint.tensor_file import lay_out
from hookline.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.sharded_checkpoints import INDEX, SHARD, index_of, put_index, save_sharded, seal

MUTATIONS = 1000 if os.environ.get("HOOKLINE_CHAOS") else 60
A = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two sharded tensors, one over the ranks and one on the first, and one that all ranks have."""
    tensors = {"weights/a": (A, (2, 1)), "weights/b": (torch.arange(4), (1,))}
    return save_sharded(tmp_path / "checkpoints", {"plain": torch.ones(2)}, tensors)


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """What is allocated is bounded; more is a ``MemoryError``, or one of torch, which no test takes for an answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * 2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(folder: Path) -> str:
    """All ways to read it refuse it; the reason."""
    store = Store(folder.parent)
    with pytest.raises(CheckpointError) as raised:
        store.load(folder)
    with pytest.raises(CheckpointError):
        read_weights(folder)
    assert isinstance(raised.value, CheckpointCorruptError)
    return str(raised.value)


def blamed(folder: Path) -> str:
    """The file that an error names; nothing if there is none."""
    try:
        Store(folder.parent).load(folder)
    except CheckpointCorruptError as error:
        return error.path.removeprefix(f"{folder}/")
    return ""


def test_it_is_read_in_full_where_nobody_has_changed_it(checkpoint: Path) -> None:
    store = Store(checkpoint.parent)
    found = store.load(checkpoint)
    assert torch.equal(found.weights["a"], A)
    assert torch.equal(found.weights["b"], torch.arange(4))
    assert set(found.weights) == {"plain", "a", "b"}
    assert set(read_weights(checkpoint)) == {"plain", "a", "b"}
    store.verify(checkpoint)
    assert [its.name for its in store.checkpoints()] == [checkpoint.name]
    assert sorted(store.checkpoints()[0].manifest.files) == [
        "model.safetensors",
        "shard-00000.safetensors",
        "shard-00001.safetensors",
        "shards.json",
        "state.json",
        "state.safetensors",
    ]


# -- an index that is not one ------------------------------------------------------------------------


class Runs:
    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._canary}",)


def texts(canary: Path) -> dict[str, bytes]:
    return {
        "a pickle that runs a command": pickle.dumps(Runs(canary)),
        "the same as text": pickle.dumps(Runs(canary), protocol=0),
        "nothing": b"",
        "words": b"no JSON at all",
        "a list": b"[1, 2]",
        "half of it": b'{"format":1,"tensors":{"weights/a":{"dty',
        "something behind it": b'{"format":1,"tensors":{}} x',
        "a key twice": b'{"format":1,"tensors":{},"tensors":{}}',
        "nested deep": b"[" * 100_000,
        "a number without end": b'{"format":1,"tensors":' + b"9" * 100_000 + b"}",
        "NaN": b'{"format":1,"tensors":NaN}',
        "another encoding": '{"format":1,"tensors":{}}'.encode("utf-16"),
        "another format": b'{"format":2,"tensors":{}}',
        "a format that is true": b'{"format":true,"tensors":{}}',
        "no format": b'{"tensors":{}}',
        "more than it needs": b'{"format":1,"tensors":{},"run":"os.system"}',
        "tensors in a list": b'{"format":1,"tensors":[]}',
    }


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("name", texts(Path("canary")))
def test_an_index_that_is_none_is_refused_and_runs_nothing(checkpoint: Path, tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    put_index(checkpoint, texts(canary)[name])
    assert f"{checkpoint}/{INDEX}: " in refused(checkpoint)
    assert not canary.exists()


def test_an_index_that_is_too_large_is_not_parsed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.checkpoint.shards.MAX_INDEX_BYTES", 300)
    assert "more than the limit" in refused(checkpoint)


# -- an index that lies ------------------------------------------------------------------------------


def lies() -> dict[str, Callable[[Any], Any]]:
    def chunk(number: int = 0, **changed: Any) -> Callable[[Any], Any]:
        return lambda index: index["tensors"]["weights/a"]["chunks"][number].update(changed)

    def tensor(**changed: Any) -> Callable[[Any], Any]:
        return lambda index: index["tensors"]["weights/a"].update(changed)

    def chunks(*boxes: tuple[list[int], list[int]]) -> Callable[[Any], Any]:
        return tensor(chunks=[{"offsets": offsets, "sizes": sizes, "file": SHARD} for offsets, sizes in boxes])

    def claims(index: Any) -> None:
        """Ten thousand tensors, each of them all of the first file."""
        index["tensors"] |= {
            f"weights/{number}": {
                "dtype": "uint8",
                "shape": [100],
                "chunks": [{"offsets": [0], "sizes": [100], "file": SHARD}],
            }
            for number in range(10_000)
        }

    return {
        "a path that leads out": chunk(file="../../../etc/passwd"),
        "an absolute path": chunk(file="/etc/passwd"),
        "a shard that is not of the checkpoint": chunk(file="shard-00007.safetensors"),
        "another file of it": chunk(file="model.safetensors"),
        "no file": chunk(file=None),
        "a list as a file": chunk(file=[SHARD]),
        "a chunk before the beginning": chunk(offsets=[-1, 0]),
        "offsets that are no numbers": chunk(offsets=[0.0, 0]),
        "offsets that are true": chunk(offsets=[False, 0]),
        "offsets of other dimensions": chunk(offsets=[0]),
        "a chunk of other dimensions": chunks(([0], [6])),
        "sizes without end": chunk(sizes=[2**61, 3]),
        "a size that Python alone has": chunk(sizes=[10**30, 3]),
        "an empty chunk": chunk(sizes=[0, 3]),
        "a chunk and an empty one": chunks(([0, 0], [2, 3]), ([2, 0], [0, 3])),
        "more than a chunk needs": chunk(entry="weights/b"),
        "a chunk that is a list": tensor(chunks=[[0, 0]]),
        "a shape that is too large": tensor(shape=[2**40, 3]),
        "a shape that is huge and covered": lambda index: (
            tensor(shape=[2**40, 3])(index),
            chunks(([0, 0], [2**40, 3]))(index),
        ),
        "a shape that is too small": tensor(shape=[2, 2]),
        "a shape of other dimensions": tensor(shape=[6]),
        "a shape of too many dimensions": tensor(shape=[1] * 1000),
        "an empty shape with chunks": tensor(shape=[0, 3]),
        "a chunk that reaches beyond": chunks(([1, 0], [2, 3])),
        "a missing region": chunks(([0, 0], [1, 3])),
        "a missing cell": chunks(([0, 0], [1, 1]), ([0, 1], [1, 2]), ([1, 0], [1, 1])),
        "an overlapping region": chunks(([0, 0], [2, 3]), ([1, 0], [1, 3])),
        "an overlapping cell": chunks(([0, 0], [1, 3]), ([0, 1], [1, 2]), ([1, 0], [1, 1])),
        "a region twice": chunks(([0, 0], [1, 3]), ([1, 0], [1, 3]), ([1, 0], [1, 3])),
        "no chunks": tensor(chunks=[]),
        "no list of chunks": tensor(chunks=None),
        "another dtype": tensor(dtype="float64"),
        "a dtype that is none": tensor(dtype="os.system"),
        "a dtype of the other name": tensor(dtype="F32"),
        "a quantized dtype": tensor(dtype="qint8"),
        "a dtype that is no text": tensor(dtype=[]),
        "more than a tensor needs": tensor(strides=[3, 1]),
        "a number in place of a tensor": lambda index: index["tensors"].update({"weights/a": 3}),
        "chunks of another file": chunk(0, file="shard-00001.safetensors"),
        "chunks that are exchanged": lambda index: (
            index["tensors"]["weights/a"]["chunks"].reverse()
            or index["tensors"]["weights/b"].update(index["tensors"]["weights/a"])
        ),
        "a name that is neither of weights nor of the state": lambda index: index["tensors"].update(
            {"c": index["tensors"].pop("weights/b")}
        ),
        "a name that no shard has": lambda index: index["tensors"].update(
            {"weights/c": index["tensors"].pop("weights/b")}
        ),
        "more bytes than there are": claims,
    }


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("name", lies())
def test_an_index_that_lies_about_its_shards_is_refused(checkpoint: Path, name: str) -> None:
    index = index_of(checkpoint)
    lies()[name](index)
    put_index(checkpoint, index)
    assert f"{checkpoint}/shard" in refused(checkpoint)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("shape", [[0, 2**61], [0, 2**61, 2**61], [2**61, 0, 2**61, 7]])
def test_an_absurd_shape_without_values_is_refused_or_harmless(checkpoint: Path, shape: list[int]) -> None:
    index = index_of(checkpoint)
    index["tensors"]["weights/c"] = {"dtype": "float64", "shape": shape, "chunks": []}
    put_index(checkpoint, index)
    assert blamed(checkpoint) in ("", INDEX)


# -- shards that are not what the index says ---------------------------------------------------------


def shard(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(bytes(part) for part in lay_out(tensors, tie=False).parts())


def header(data: bytes, **changed: Any) -> bytes:
    """The same shard with other entries for ``weights/a`` in its header."""
    (length,) = struct.unpack("<Q", data[:8])
    content = json.loads(data[8 : 8 + length])
    content["weights/a"].update(changed)
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def shards(whole: bytes, canary: Path) -> dict[str, bytes]:
    b = torch.arange(4)
    return {
        "a pickle": pickle.dumps(Runs(canary)) + bytes(1000),
        "nothing": b"",
        "noise": bytes(range(256)) * 4,
        "half of it": whole[: len(whole) // 2],
        "without its last byte": whole[:-1],
        "something behind it": whole + b"x",
        "a header without end": struct.pack("<Q", 2**62) + whole[8:],
        "another shape": shard({"weights/a": torch.zeros(3, 1), "weights/b": b}),
        "another dtype": shard({"weights/a": torch.zeros(1, 3, dtype=torch.int32), "weights/b": b}),
        "another width": shard({"weights/a": torch.zeros(1, 3, dtype=torch.float64), "weights/b": b}),
        "another name": shard({"weights/c": torch.zeros(1, 3), "weights/b": b}),
        "a claim of more bytes": header(whole, data_offsets=[0, 2**40]),
        "a claim of more values": header(whole, shape=[2**40, 3]),
        "bytes of another tensor": header(whole, data_offsets=[0, 12]),
        "a dtype that is none": header(whole, dtype="F4096"),
    }


NAMES = list(shards(shard({"weights/a": A[:1], "weights/b": torch.arange(4)}), Path("canary")))


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("name", NAMES)
def test_a_shard_that_is_not_what_the_index_says_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    path = checkpoint / SHARD
    path.write_bytes(shards(path.read_bytes(), canary)[name])
    seal(checkpoint)
    assert f"{checkpoint}/shard" in refused(checkpoint)
    assert not canary.exists()


def test_a_tied_name_is_not_a_way_to_more_memory(checkpoint: Path) -> None:
    """A file of our own kind could map many names to one tensor."""
    tied = torch.arange(4)
    data = b"".join(bytes(part) for part in lay_out({"weights/a": A[:1], "weights/c": tied, "weights/b": tied}).parts())
    (checkpoint / SHARD).write_bytes(data)
    seal(checkpoint)
    assert "does not have it" in refused(checkpoint)


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [INDEX, SHARD])
def test_a_changed_bit_is_found_by_the_hash(checkpoint: Path, file: str) -> None:
    data = bytearray((checkpoint / file).read_bytes())
    data[len(data) // 2] ^= 4
    (checkpoint / file).write_bytes(data)
    assert "SHA-256" in refused(checkpoint)
    with pytest.raises(CheckpointCorruptError):
        Store(checkpoint.parent).verify(checkpoint)


@pytest.mark.parametrize("file", [INDEX, SHARD])
def test_a_file_that_is_gone_cut_or_a_link_is_refused(checkpoint: Path, tmp_path: Path, file: str) -> None:
    kept = (checkpoint / file).read_bytes()
    (checkpoint / file).write_bytes(kept[:-1])
    assert f"{checkpoint}/{file}: it has {len(kept) - 1:,} bytes" in refused(checkpoint)
    (checkpoint / file).unlink()
    assert f"{checkpoint}/{file}: it is missing" in refused(checkpoint)
    (tmp_path / "elsewhere").write_bytes(kept)
    (checkpoint / file).symlink_to(tmp_path / "elsewhere")
    assert f"{checkpoint}/{file}: it is a symbolic link" in refused(checkpoint)


def test_a_shard_that_shrinks_while_it_is_read_is_an_error(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is mapped into memory would end the process here."""
    from hookline.checkpoint.shard_reader import ShardReader

    plain = ShardReader._entry

    def cut(self: ShardReader, *args: Any) -> Any:
        found = plain(self, *args)
        os.truncate(checkpoint / SHARD, 50)
        return found

    monkeypatch.setattr(ShardReader, "_entry", cut)
    with pytest.raises(CheckpointCorruptError, match=r"shard-00000.safetensors: it ends too early"):
        Store(checkpoint.parent).load(checkpoint)


@pytest.mark.parametrize("gone", [[INDEX], [SHARD, "shard-00001.safetensors"]])
def test_a_manifest_with_shards_or_an_index_alone_is_refused(checkpoint: Path, gone: list[str]) -> None:
    for name in gone:
        (checkpoint / name).unlink()
    seal(checkpoint)
    assert "it lists only one of" in refused(checkpoint)


def test_what_a_killed_run_left_of_shards_is_swept_and_foreign_files_are_not(checkpoint: Path) -> None:
    store = Store(checkpoint.parent)
    torn = checkpoint.parent / f"step-00000009.tmp-{'a' * 32}"
    torn.mkdir()
    for name in (SHARD, "shard-00011.safetensors", "shard-100000.safetensors", INDEX):
        (torn / name).write_bytes(b"half")
    foreign = checkpoint.parent / f"step-00000010.tmp-{'b' * 32}"
    foreign.mkdir()
    (foreign / "shard-a.safetensors").write_bytes(b"mine")
    with pytest.warns(UserWarning, match=r"shard-a\.safetensors"):
        assert store.sweep() == [torn]
    assert foreign.exists()
    assert [its.name for its in store.checkpoints()] == [checkpoint.name]


# -- random changes ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("_little_memory")
@settings(
    max_examples=MUTATIONS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from([INDEX, SHARD]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=6)), min_size=1, max_size=3),
)
def test_a_random_change_is_refused_or_harmless(checkpoint: Path, file: str, changes: list[Any]) -> None:
    """Each cuts out some bytes of the file and puts in others; the manifest says that it is so."""
    before = (checkpoint / file).read_bytes()
    data = before
    for place, length, fresh in changes:
        at = int(place * len(data))
        data = data[:at] + fresh + data[at + length :]
    (checkpoint / file).write_bytes(data)
    seal(checkpoint)
    found = blamed(checkpoint)
    (checkpoint / file).write_bytes(before)
    assert found in ("", INDEX, SHARD, "shard-00001.safetensors")
