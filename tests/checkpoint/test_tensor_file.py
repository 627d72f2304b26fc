"""Files of tensors: every dtype and shape in every bit, tied weights, and other tools can read them."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn

from hookline.checkpoint import tensor_bytes
from hookline.checkpoint.hashed_file import FileRecord, HashedReader, write_file
from hookline.checkpoint.tensor_file import lay_out, read_tensors
from hookline.errors import CheckpointCorruptError, StateError

DTYPES = sorted(set(tensor_bytes.DTYPES.values()) - tensor_bytes.QUANTIZED, key=str)


def write(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        layout = lay_out(tensors)
        record = write_file(path.name, layout.parts(), folder)
    finally:
        os.close(folder)
    assert record == FileRecord(layout.size, hashlib.sha256(path.read_bytes()).hexdigest())
    return record


def read(path: Path, record: FileRecord | None = None) -> dict[str, Tensor]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with HashedReader(str(path), path.name, folder, record) as file:
            tensors = read_tensors(file)
            file.finish()
            return tensors
    finally:
        os.close(folder)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor_bytes.memory(tensor_bytes.on_cpu_in_order(tensor)))


def random_bits(dtype: torch.dtype, *shape: int) -> Tensor:
    count = dtype.itemsize
    for size in shape:
        count *= size
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (count,), dtype=torch.uint8).view(dtype).view(shape)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (4, 0, 2), (2, 3, 4, 5)], ids=str)
def test_every_dtype_and_shape_comes_back_in_every_bit(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    wrong = []
    for dtype in DTYPES:
        tensor = random_bits(dtype, *shape)
        back = read(path, write(path, {"it": tensor, "before": torch.ones(3, dtype=torch.uint8)}))["it"]
        if (back.dtype, back.shape, bits(back)) != (dtype, tensor.shape, bits(tensor)):
            wrong.append(dtype)
        path.unlink()
    assert wrong == []


def test_every_dtype_comes_back_from_memory_that_is_not_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    wrong = []
    for dtype in DTYPES:
        tensor = random_bits(dtype, 6, 4)
        views = {"turned": tensor.t(), "every other": tensor[::2, 1::2], "same": tensor[:1].expand(3, 4)}
        back = read(path, write(path, views))
        if {name: bits(value) for name, value in back.items()} != {name: bits(value) for name, value in views.items()}:
            wrong.append(dtype)
        path.unlink()
    assert wrong == []


def test_strides_that_fill_their_memory_come_back_because_sums_depend_on_them(tmp_path: Path) -> None:
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    path = tmp_path / "t.safetensors"
    back = read(path, write(path, {"last": last, "turned": torch.randn(2, 3).t(), "one": torch.randn(1, 1).t()}))
    assert back["last"].stride() == last.stride()
    assert back["turned"].stride() == (1, 3)
    assert torch.equal(back["last"], last)


def test_conjugated_and_negated_views_come_back_with_their_values(tmp_path: Path) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    path = tmp_path / "t.safetensors"
    tensors = {"plain": tensor, "conj": tensor.conj(), "neg": tensor.conj().imag}
    back = read(path, write(path, tensors))
    assert back["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert back["neg"].tolist() == [-2.0, 4.0]
    assert back["plain"].tolist() == tensor.tolist()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_written_once_and_shared_again(tmp_path: Path) -> None:
    model = Tied()
    path = tmp_path / "t.safetensors"
    back = read(path, write(path, model.state_dict()))
    assert back.keys() == model.state_dict().keys()
    assert back["embed.weight"].data_ptr() == back["head.weight"].data_ptr()
    assert path.stat().st_size < write(tmp_path / "u", {n: t.clone() for n, t in model.state_dict().items()}).size
    Tied().load_state_dict(back)


def test_other_tools_load_our_files_tied_weights_included(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    path = tmp_path / "t.safetensors"
    write(path, model.state_dict())
    load_model(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    loaded = load_file(path)
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in model.state_dict().items() if name != "head.weight"
    }


def test_we_load_files_of_other_tools_tied_weights_included(tmp_path: Path) -> None:
    model = Tied()
    path = tmp_path / "t.safetensors"
    save_model(model, str(path))
    back = read(path)
    assert back.keys() == model.state_dict().keys()
    assert back["embed.weight"].data_ptr() == back["head.weight"].data_ptr()


def test_other_tools_load_every_dtype_of_ours(tmp_path: Path) -> None:
    tensors = {str(dtype): random_bits(dtype, 3, 5) for dtype in DTYPES} | {"empty": torch.empty(0, 2)}
    path = tmp_path / "t.safetensors"
    write(path, tensors)
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for dtype in tensor_bytes.STORED_AS:
        assert loaded[str(dtype)].dtype is dtype
        assert bits(loaded[str(dtype)]) == bits(tensors[str(dtype)])
    assert bits(loaded["torch.complex128"]) == bits(tensors["torch.complex128"])


def test_every_tensor_begins_at_a_multiple_of_its_width_so_that_readers_can_map_it(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write(path, {"byte": random_bits(torch.int8, 3)} | {str(dtype): random_bits(dtype, 3) for dtype in DTYPES})
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    starts = {dtype: header[str(dtype)]["data_offsets"][0] for dtype in DTYPES}
    assert [dtype for dtype, start in starts.items() if (8 + length + start) % min(dtype.itemsize, 8)] == []


def test_tensors_that_overlap_in_part_come_back_equal(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    path = tmp_path / "t.safetensors"
    back = read(
        path, write(path, {"whole": whole, "left": whole[:6], "right": whole[4:], "bits": whole.view(torch.int32)})
    )
    assert back["left"].tolist() == whole[:6].tolist()
    assert back["right"].tolist() == whole[4:].tolist()
    assert back["bits"].dtype is torch.int32


def test_empty_tensors_are_not_taken_for_one_another(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    back = read(path, write(path, {"a": torch.empty(0), "b": torch.empty(0, 3), "c": torch.empty(0, dtype=torch.int8)}))
    assert [(tuple(t.shape), t.dtype) for t in back.values()] == [
        ((0,), torch.float32),
        ((0, 3), torch.float32),
        ((0,), torch.int8),
    ]


class Sub(Tensor):
    pass


def test_a_plain_subclass_comes_back_as_a_tensor_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensor = torch.randn(3).as_subclass(Sub)
    back = read(path, write(path, {"it": tensor}))["it"]
    assert type(back) is Tensor
    assert torch.equal(back, tensor.as_subclass(Tensor))


class Wrapper(Tensor):
    """Holds its values in another tensor, as quantized weights and DTensor do."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[attr-defined,no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it will go
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def freed(size: int) -> Tensor:
    """As a sharding engine leaves the weights of a layer that is not in use."""
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(size)
    return tensor


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.eye(2).to_sparse(), "not dense"),
        (lambda: torch.eye(2).to_sparse_csr(), "torch.sparse_csr is not dense"),
        (lambda: torch.empty(2, device="meta"), "meta"),
        (quantized, "scale"),
        (lambda: Wrapper(torch.ones(2)), "Wrapper holds its values in other tensors"),
        (lambda: nn.LazyLinear(2).weight, "lazy parameter has no values yet"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: freed(0), "memory has been freed"),
        (lambda: freed(4), "memory has been freed"),
        (lambda: 3.5, "a float is among the weights"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_what_has_no_plain_bytes_is_refused_by_name(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(StateError, match=rf"^layer\.weight: .*{why}"):
        lay_out({"layer.weight": make()})


def test_names_that_other_things_in_the_file_have_do_no_harm(tmp_path: Path) -> None:
    shared = torch.ones(2)
    tensors = {"a": shared, "format": shared, "hookline": shared, "": torch.zeros(1), "ü/漢 \n": torch.zeros(2)}
    path = tmp_path / "t.safetensors"
    back = read(path, write(path, tensors))
    assert {name: value.tolist() for name, value in back.items()} == {n: t.tolist() for n, t in tensors.items()}
    load_file(path)
    with pytest.raises(StateError, match="__metadata__"):
        lay_out({"__metadata__": shared})


def test_cpu_tensors_in_order_are_written_from_their_own_memory() -> None:
    tensor = torch.ones(1000)
    assert tensor_bytes.on_cpu_in_order(tensor).data_ptr() == tensor.data_ptr()


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=6))
def test_any_set_of_tensors_comes_back(tmp_path_factory: pytest.TempPathFactory, kinds: list[Any]) -> None:
    tensors = {str(index): random_bits(dtype, *shape) for index, (dtype, shape) in enumerate(kinds)}
    path = tmp_path_factory.mktemp("any") / "t"
    back = read(path, write(path, tensors))
    assert list(back) == list(tensors)
    assert [(bits(t), t.dtype, t.shape) for t in back.values()] == [
        (bits(t), t.dtype, t.shape) for t in tensors.values()
    ]
    load_file(path)


# -- headers that lie ----------------------------------------------------------------------------------

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
OURS = "__metadata__"


def lying(header: Any, data: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "too early"),
        (b"\0" * 7, "too early"),
        (b"\0" * 8, "not valid JSON"),
        (lying({"a": ENTRY}, length=2**63), "header claims"),
        (lying({"a": ENTRY}, length=2**40), "header claims"),
        (lying([]), "not a JSON object"),
        (lying(b'{"a":'), "not valid JSON"),
        (lying(b"[" * 100_000), "nested too deeply"),
        (lying(b'{"a": NaN}'), "NaN"),
        (lying(b'{"a": {}, "a": {}}'), "twice"),
        (lying({"a": 1}), "must have dtype"),
        (lying({"a": {**ENTRY, "code": "import os"}}), "nothing else"),
        (lying({"a": {**ENTRY, "dtype": "X9"}}), "unknown dtype"),
        (lying({"a": {**ENTRY, "dtype": ["F32"]}}), "unknown dtype"),
        (lying({"a": {**ENTRY, "dtype": "F64"}}), "needs 16"),
        (lying({"a": {**ENTRY, "shape": [3]}}), "needs 12"),
        (lying({"a": {**ENTRY, "shape": [-1, -2]}}), "sizes"),
        (lying({"a": {**ENTRY, "shape": [2.0]}}), "sizes"),
        (lying({"a": {**ENTRY, "shape": [True, 2]}}), "sizes"),
        (lying({"a": {**ENTRY, "shape": [2**62, 4]}}), "sizes"),
        (lying({"a": {**ENTRY, "shape": [2**61, 2**61]}}), "needs"),
        (lying({"a": {**ENTRY, "shape": [1] * 65}}), "sizes"),
        (lying({"a": {**ENTRY, "shape": {}}}), "sizes"),
        (lying({"a": {**ENTRY, "data_offsets": [8, 0]}}), "has -8 bytes"),
        (lying({"a": {**ENTRY, "data_offsets": [0]}}), "sizes"),
        (lying({"a": {**ENTRY, "data_offsets": [8, 16]}}), "starts at byte 8"),
        (lying({"a": {**ENTRY, "shape": [2**40], "data_offsets": [0, 2**42]}}), "claim 4,398,046,511,104 bytes"),
        (lying({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}), "claim 4 bytes, but it has 8"),
        (lying({"a": ENTRY, "b": ENTRY}), "starts at byte 0, not at 8"),
        (lying({"a": ENTRY, OURS: 3}), "metadata"),
        (lying({"a": ENTRY, OURS: {"x": 3}}), "not strings"),
        (lying({"a": ENTRY, OURS: {"hookline": "["}}), "not valid JSON"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"more": 1}'}}), "more than"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"aliases": 1}'}}), "JSON objects"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"aliases": {"b": "c"}}'}}), "tied"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"aliases": {"a": "a"}}'}}), "tied"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"dtypes": {"a": "complex128"}}'}}), "stored as bytes"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"dtypes": {"a": "nn.Module"}}'}}), "unknown dtype"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"dtypes": {"a": "qint8"}}'}}), "unknown dtype"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"strides": {"a": [3]}}'}}), "do not fit"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"strides": {"a": [0]}}'}}), "do not fit"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"strides": {"a": [1, 1]}}'}}), "do not fit"),
        (lying({"a": ENTRY, OURS: {"hookline": '{"strides": {"b": [1]}}'}}), "do not exist"),
    ],
)
def test_a_header_that_lies_is_found_before_anything_is_allocated(file: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file)
    with pytest.raises(CheckpointCorruptError, match=why) as caught:
        read(path)
    assert caught.value.path == str(path)
