"""Chunks of sharded tensors: written once each, and read by any number of ranks that are placed in any other way."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hookline.checkpoint import Snapshot, Store, shards
from hookline.checkpoint.hashed_file import FileRecord, HashedReader
from hookline.checkpoint.inspect import inspect, opened
from hookline.checkpoint.names import shard_name
from hookline.checkpoint.shard_reader import ShardReader
from hookline.checkpoint.shards import Chunk, ShardedTensor, index_to_bytes, plan_chunks, read_index
from hookline.checkpoint.tensor_bytes import STORED_AS
from hookline.checkpoint.together import write_shard
from hookline.errors import CheckpointCorruptError, CheckpointWriteError, StateError
from hookline.testing import run_script
from tests.checkpoint.sharded_checkpoints import ABOUT, index_of, save_sharded, seal

CASES = 400 if os.environ.get("HOOKLINE_CHAOS") else 60


# -- which rank writes what --------------------------------------------------------------------------


def described(*chunks: Any, dtype: str = "float32", shape: tuple[int, ...] = (4, 6)) -> list[dict[str, Any]]:
    return [{"weights/a": [dtype, list(shape), chunk]} for chunk in chunks]


TOP, BOTTOM = [[0, 0], [2, 6]], [[2, 0], [2, 6]]


def files(tensors: dict[str, ShardedTensor]) -> list[str]:
    return [chunk.file for tensor in tensors.values() for chunk in tensor.chunks]


def test_replicas_of_a_chunk_are_written_once_and_evenly() -> None:
    """As with hybrid sharding over two times two ranks: each chunk is held by two."""
    ranks: list[dict[str, Any]] = [{}, {}, {}, {}]
    for number in range(10):
        for rank, chunk in enumerate([TOP, BOTTOM, TOP, BOTTOM]):
            ranks[rank][f"weights/{number}"] = ["float32", [4, 6], chunk]
    found = files(plan_chunks(ranks))
    assert len(found) == 20
    assert [found.count(shard_name(rank)) for rank in range(4)] == [5, 5, 5, 5]
    assert plan_chunks(ranks) == plan_chunks([dict(reversed(its.items())) for its in ranks])


def test_large_chunks_do_not_all_go_to_one_rank() -> None:
    sizes = [1000, 10, 1000, 10, 1000, 10, 1000, 10]
    told: dict[str, Any] = {f"state/{n}": ["float32", [size], [[0], [size]]] for n, size in enumerate(sizes)}
    load = {shard_name(0): 0, shard_name(1): 0}
    for tensor in plan_chunks([told, told]).values():
        load[tensor.chunks[0].file] += tensor.nbytes
    assert set(load.values()) == {4 * 2020}


def test_scalars_and_empty_tensors_have_one_chunk_and_none() -> None:
    assert files(plan_chunks(described([[], []], [[], []], shape=()))) == [shard_name(0)]
    assert files(plan_chunks(described(None, None, shape=(0, 3)))) == []


@pytest.mark.parametrize(
    "ranks",
    [
        described(TOP, None),
        described(TOP, [[2, 0], [1, 6]]),
        described(TOP, [[1, 0], [3, 6]]),
        described(None, None),
        described(TOP, BOTTOM, [[0, 0], [4, 6]]),
        [*described(TOP), *described(BOTTOM, dtype="float64")],
        [*described(TOP), *described(BOTTOM, shape=(4, 7))],
    ],
)
def test_ranks_that_do_not_hold_one_tensor_together_are_refused_before_anything_is_written(ranks: Any) -> None:
    with pytest.raises(StateError, match="weights/a"):
        plan_chunks(ranks)


def test_an_index_that_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_INDEX_BYTES", 100)
    with pytest.raises(StateError, match="too large"):
        index_to_bytes(plan_chunks(described(TOP, BOTTOM)))


def test_the_index_comes_back_as_it_was() -> None:
    planned = plan_chunks(described(TOP, BOTTOM))
    there = {shard_name(rank): FileRecord(1000, "") for rank in range(2)}
    assert read_index(index_to_bytes(planned), there, "shards.json") == planned


def test_a_hundred_thousand_overlapping_chunks_are_refused_in_no_time() -> None:
    count = 100_000
    chunks = tuple(Chunk((0, 0), (1, number + 1), "a") for number in range(count))
    begun = time.process_time()
    assert not ShardedTensor(torch.float32, (1, count), chunks).is_complete()
    assert time.process_time() - begun < 5


def test_a_rank_that_does_not_see_the_folder_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointWriteError, match="All ranks need a shared file system"):
        write_shard(tmp_path / "elsewhere", shard_name(1), {}, 0)


# -- files -------------------------------------------------------------------------------------------

DTYPES = [*STORED_AS, torch.complex128]
"""All that safetensors has, and one that is kept as bytes."""


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    count = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = (its.contiguous().flatten().view(torch.uint8) for its in (one, other))
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_as_it_was_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    full = {"weights/a": values(dtype, 5, 3), "weights/b": values(dtype), "weights/c": values(dtype, 0, 3)}
    cuts = {"weights/a": (2, 2), "weights/b": (), "weights/c": (1, 1)}
    path = save_sharded(tmp_path, {}, {name: (full[name], cuts[name]) for name in full}, ranks=4)
    found = Store(tmp_path).load(path).weights
    assert [name for name in full if not same(found[name.removeprefix("weights/")], full[name])] == []


def test_the_shards_are_files_that_the_safetensors_library_reads(tmp_path: Path) -> None:
    full = values(torch.float32, 5, 3)
    path = save_sharded(tmp_path, {}, {"weights/a": (full, (2, 1))})
    found = [load_file(path / shard_name(rank))["weights/a"] for rank in range(2)]
    assert torch.equal(torch.cat(found).view(torch.int32), full.view(torch.int32))
    entry = index_of(path)["tensors"]["weights/a"]
    assert entry["dtype"] == "float32"
    assert entry["chunks"][1] == {"offsets": [3, 0], "sizes": [2, 3], "file": shard_name(1)}


def test_tied_chunks_are_written_for_each_name(tmp_path: Path) -> None:
    full = values(torch.float32, 4, 3)
    path = save_sharded(tmp_path, {}, {"weights/a": (full, (2, 1)), "weights/tied": (full, (2, 1))})
    found = Store(tmp_path).load(path).weights
    assert same(found["a"], full)
    assert same(found["tied"], full)


@pytest.mark.parametrize("shape", [(40, 50, 60), (6000, 30)])
def test_a_slice_is_read_and_not_the_chunk_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    full = values(torch.float32, *shape)
    path = save_sharded(tmp_path, {}, {"weights/a": (full, (1,) * len(shape))}, ranks=1)
    read, plain = [0], HashedReader.read_at

    def counted(self: HashedReader, position: int, view: memoryview) -> None:
        read[0] += len(view)
        plain(self, position, view)

    # A target that is a quarter of the rows, and of the second dimension where rows are long.
    rows = shape[0] // 4
    columns = shape[1] // 2 if len(shape) == 3 else shape[1]
    region = ((rows, 0, 0)[: len(shape)], (rows, columns, shape[-1])[: len(shape)])
    target = torch.empty(region[1])
    monkeypatch.setattr("hookline.checkpoint.shard_reader.local_chunk", lambda _: region)
    with opened(path) as folder, ShardReader(str(path), folder, inspect(path).manifest.files) as reader:
        monkeypatch.setattr(HashedReader, "read_at", counted)
        reader.read(["weights/a"], lambda *_: target)
    assert same(target, full[rows : 2 * rows, :columns])
    assert target.nbytes <= read[0] < target.nbytes + 1000, "its header, and nothing else"


# -- real DTensors -----------------------------------------------------------------------------------

RESHARD = """
import math, random, shutil, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from hookline.checkpoint import Snapshot, Store
from hookline.checkpoint.shards import describe, index_to_bytes, plan_chunks
from hookline.checkpoint.names import shard_name
from hookline.checkpoint.together import write_shard
from hookline.distributed.dtensors import part_of
from tests.checkpoint.sharded_checkpoints import ABOUT, INDEX, seal

MESHES = [(1,), (2,), (3,), (5,), (2, 2), (3, 2), (2, 2, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex64]
draw = random.Random(int(sys.argv[2]))

def on_each_rank(mesh):
    for rank in range(math.prod(mesh)):
        dist.init_process_group("fake", rank=rank, world_size=math.prod(mesh), store=FakeStore())
        try:
            yield rank, init_device_mesh("cpu", mesh)
        finally:
            dist.destroy_process_group()

def placements(mesh, shape):
    if len(mesh) == 2 and shape and not shape[0] % math.prod(mesh) and draw.random() < 0.3:
        return [_StridedShard(0, split_factor=mesh[1]), Shard(0)]  # FSDP of a layer that is tensor-parallel
    kinds = [Replicate(), *(Shard(dimension) for dimension in range(len(shape)))]
    return [draw.choice(kinds) for _ in mesh]

def full_tensor(shape, dtype):
    numbers = torch.randint(0, 2, (*shape,)) if dtype is torch.bool else torch.randint(0, 100, (*shape,))
    return numbers.to(torch.float32).to(dtype)

def empty(like):
    # Not empty_like(): torch remembers how its result was placed on the first of these ranks.
    local = torch.empty_like(part_of(like))
    mesh, kinds = like.device_mesh, like.placements
    return DTensor.from_local(local, mesh, kinds, run_check=False, shape=like.shape, stride=like.stride())

def bits(tensor):
    return tensor.dtype, tensor.shape, bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())

for case in range(int(sys.argv[3])):
    tensors = {}
    for number in range(draw.randint(1, 4)):
        shape = tuple(draw.choice([0, 1, 2, 3, 7, 12]) for _ in range(draw.randint(0, 3)))
        tensors[f"weights/{number}"] = full_tensor(shape, draw.choice(DTYPES))
    before, after = draw.choice(MESHES), draw.choice(MESHES)
    saved = {name: placements(before, value.shape) for name, value in tensors.items()}
    wanted = {name: placements(after, value.shape) for name, value in tensors.items()}
    path = Store(sys.argv[1]).save(Snapshot(ABOUT, {})).path
    described, held = [], []
    for rank, mesh in on_each_rank(before):
        own = {n: distribute_tensor(t, mesh, saved[n], src_data_rank=None) for n, t in tensors.items()}
        described.append(describe(own))
        held.append({name: part_of(value).clone() for name, value in own.items()})
    plan = plan_chunks(described)
    count = 0
    for rank, parts in enumerate(held):
        mine = {n: parts[n] for n, its in plan.items() if shard_name(rank) in {c.file for c in its.chunks}}
        write_shard(path, shard_name(rank), mine, 0)
        count += sum(value.nbytes for value in mine.values())
    assert count == sum(value.nbytes for value in tensors.values()), "each value is written once"
    (path / INDEX).write_bytes(index_to_bytes(plan))
    seal(path)
    store = Store(sys.argv[1])
    whole = store.load(path).weights
    for name, value in tensors.items():
        assert bits(whole[name.removeprefix("weights/")]) == bits(value), (case, name)
    for rank, mesh in on_each_rank(after):
        like = {n: distribute_tensor(t, mesh, wanted[n], src_data_rank=None) for n, t in tensors.items()}
        found = store.load(path, lambda name, shape, dtype: empty(like[name])).weights
        for name, value in like.items():
            assert bits(part_of(found[name.removeprefix("weights/")])) == bits(part_of(value)), (case, rank, name)
    shutil.rmtree(path)
print("fine")
"""


@pytest.mark.parametrize("seed", range(2))
def test_what_ranks_have_written_any_other_ranks_read_bit_by_bit(tmp_path: Path, seed: int) -> None:
    """Uneven and empty shards, scalars, replicas, and meshes of up to three dimensions, before and after."""
    done = run_script(RESHARD, args=[tmp_path / "checkpoints", seed, CASES], env={"PYTHONPATH": os.getcwd()})
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


PARTIAL = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from hookline.checkpoint.shards import describe
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,))
for local, placement in ((torch.ones(2), Partial()), (torch.ones(2, device="meta"), Shard(0))):
    try:
        describe({"state/sum": DTensor.from_local(local, mesh, [placement], run_check=False)})
    except ValueError as error:
        print(error)
dist.destroy_process_group()
"""


def test_a_dtensor_without_values_is_refused_with_its_name() -> None:
    done = run_script(PARTIAL)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("state/sum: a DTensor with Partial() placements")
    assert second.startswith("state/sum: a tensor on the meta device has no values")


# -- what a checkpoint of an earlier version says ----------------------------------------------------


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_of_torch_distributed_checkpoint_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    path = store.save(Snapshot(ABOUT, {})).path
    (path / name).write_bytes(b"a pickle")
    seal(path)
    with pytest.raises(
        CheckpointCorruptError, match=r"torch\.distributed\.checkpoint.*hookline checkpoints consolidate"
    ):
        store.load(path)
    assert "torch.distributed.checkpoint" in store.rejected()[0].reason


def test_nothing_that_writes_or_reads_checkpoints_imports_pickle() -> None:
    imported = set()
    for path in Path(shards.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    assert "hookline.checkpoint.shards" in imported
    refused = ("pickle", "_pickle", "pickletools", "marshal", "shelve", "torch.distributed.checkpoint")
    assert [name for name in imported if name.startswith(refused)] == []
