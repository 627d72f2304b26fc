"""State goes into JSON and tensors and comes back as it was, without pickle; what cannot is refused with its path."""

from __future__ import annotations

import enum
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import MAX_DEPTH, check, encode
from hookline.errors import CheckpointCorruptError, StateError
from hookline.progress import Duration


def round_trip(value: Any) -> Any:
    tree, tensors = encode({"it": value})
    text = json.dumps(tree, allow_nan=False)
    return decode(json.loads(text), tensors, "state.json")["it"]


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, in every bit: NaN is NaN, 1 is not True, -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(x, y) and same(a[x], b[y]) for x, y in zip(a.keys(), b.keys(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


KEPT = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**64,
    -(2**200),
    10**5000,
    0.1,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    math.nan,
    math.inf,
    -math.inf,
    complex(1, -2),
    complex(math.nan, -0.0),
    "",
    "text \n \x00 \u2028 ü 漢 \U0001f600",
    "\ud800",
    b"",
    b"\x00\xff",
    bytes(range(256)) * 40,
    [],
    [1, [2.5, ["x", None]]],
    [1, True, 2.0],
    (),
    (1, (2,), []),
    {},
    {"a": {"b": {}}},
    {0: "int", 1.5: "float", None: "none", True: "bool", "0": "str", (1, ("a", None)): "tuple"},
    {10**5000: 1, (10**5000,): 2},
    {"$": 1},
    {"$tuple": [1]},
    {"$dict": {"$x": 1}},
    set(),
    {1, "a", None, (2, 3)},
    frozenset({1.5, frozenset()}),
    OrderedDict([("z", 1), ("a", 2)]),
    OrderedDict([(2, 1), (1, 2)]),
    Counter({"x": 3, "y": 0, "z": -2}),
    Counter({80: 1, 120: 1}),
    torch.Size([2, 0, 3]),
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.device("cuda", 3),
    torch.device("cpu"),
    random.Random(3).getstate(),
    np.random.RandomState(3).get_state(legacy=True),
    np.random.default_rng(3).bit_generator.state,
    np.arange(6, dtype=np.uint16).reshape(2, 3),
    np.array(1.5),
    np.zeros((0, 3), dtype=np.complex128),
    np.arange(5)[::-1],
    np.broadcast_to(np.float32(2), (3,)),
    np.arange(12.0).reshape(3, 4).T,
]


def test_what_is_kept_comes_back_with_its_type_and_every_bit() -> None:
    assert [value for value in KEPT if not same(round_trip(value), value)] == []


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 3


class Mode(enum.StrEnum):
    MIN = "min"


class MyDict(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (deque([1, 2], maxlen=3), [1, 2]),
        (defaultdict(list, {"a": [1]}), {"a": [1]}),
        (MyDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Path("a") / "b", "a/b"),
        (bytearray(b"x"), b"x"),
        (Colour.RED, 3),
        (Mode.MIN, "min"),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64("inf"), math.inf),
        (np.int64(-5), -5),
        (np.bool_(True), True),
        (np.complex64(1j), 1j),
        (np.str_("x"), "x"),
        ({np.int64(1): 2}, {1: 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_made_plain_becomes_what_the_documentation_says(value: Any, plain: Any) -> None:
    assert same(round_trip(value), plain)


def test_optimizer_scheduler_scaler_and_generator_states_come_back_the_same() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedulers = [
        torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    ]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    generator = torch.Generator().manual_seed(5)
    state = {
        "optimizer": optimizer.state_dict(),
        "schedulers": [scheduler.state_dict() for scheduler in schedulers],
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "generator": generator.get_state(),
    }
    back = round_trip(state)
    assert same(back, state)
    other = torch.Generator()
    other.set_state(back["generator"])
    assert torch.equal(torch.rand(3, generator=other), torch.rand(3, generator=generator))


def test_random_states_can_be_set_from_what_comes_back() -> None:
    python, numpy = random.Random(1), np.random.RandomState(1)
    other_python, other_numpy = random.Random(2), np.random.RandomState(2)
    other_python.setstate(round_trip(python.getstate()))
    other_numpy.set_state(round_trip(numpy.get_state()))
    assert other_python.random() == python.random()
    assert other_numpy.rand() == numpy.rand()


def test_a_parameter_comes_back_as_a_plain_tensor_without_a_gradient() -> None:
    back = round_trip(nn.Parameter(torch.ones(2)))
    assert type(back) is Tensor
    assert not back.requires_grad


def test_no_tensor_is_copied() -> None:
    tensor = torch.ones(5)
    _, tensors = encode({"a": [tensor], "b": np.ones(3)})
    assert tensors["a/0"].data_ptr() == tensor.data_ptr()


def test_tensors_are_named_by_the_path_of_their_key_also_where_two_paths_read_alike() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    tree, tensors = encode({"x/y": a, "x": {"y": b, 0: c, "0": a}})
    assert sorted(tensors) == ["x/0", "x/0#2", "x/y", "x/y#2"]
    back = decode(tree, tensors, "state.json")
    assert same(back, {"x/y": a, "x": {"y": b, 0: c, "0": a}})


def function() -> None: ...


class Task:
    pass


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (lambda: 1, "a lambda cannot be saved"),
        (function, "a function cannot be saved"),
        (Task(), "a Task cannot be saved"),
        (Task, "a type cannot be saved"),
        (timedelta(1), "a timedelta cannot be saved"),
        (Duration.parse("1ep"), "a Duration cannot be saved"),
        (torch.Generator(), r"a Generator cannot be saved. Save its get_state\(\)"),
        (nn.Linear(1, 1), r"a Linear cannot be saved. Save its state_dict\(\)"),
        (enum.Enum("Plain", "A").A, r"a Plain cannot be saved. Save its \.value"),
        (iter([]), "a list_iterator cannot be saved"),
        (range(3), "a range cannot be saved"),
        (np.array(["text"]), "an array of <U4"),
        (np.array([object()]), "an array of object"),
        (np.arange(3, dtype=">i4"), "an array of >i4 cannot be saved"),
        (np.datetime64("2020-01-01"), "a datetime64 cannot be saved"),
        (torch.eye(2).to_sparse(), "not dense"),
        (torch.empty(2, device="meta"), "meta device"),
        ({torch.ones(1): 1}, "cannot be saved as a key"),
        ({(1, torch.ones(1)): 1}, "cannot be saved as a key"),
        ({torch.ones(1)}, "cannot be saved as a key"),
        ({Path("a"): 1, "a": 2}, "two keys become equal"),
    ],
)
def test_what_would_need_code_to_come_back_is_refused_with_the_path_of_its_key(value: Any, what: str) -> None:
    state = {"callbacks": {"EarlyStopping": {"best": [0, value]}}}
    with pytest.raises(StateError, match=f"^callbacks/EarlyStopping/best/1.*: .*{what}"):
        check(state)


def test_a_state_that_contains_itself_is_refused_and_does_not_overflow_the_stack() -> None:
    state: dict[str, Any] = {}
    state["me"] = [state]
    with pytest.raises(StateError, match="Check whether it contains itself"):
        check(state)


def test_the_deepest_state_that_can_be_saved_can_be_loaded() -> None:
    deep: Any = torch.ones(1)
    for _ in range(MAX_DEPTH - 1):
        deep = ({1: deep},)[0] if isinstance(deep, tuple) else (deep,)
    assert same(round_trip(deep), deep)


@pytest.mark.parametrize(
    "tree",
    [
        {"$unknown": 1},
        {"$tuple": [1], "more": 2},
        {"$tuple": 1},
        {"$dict": [[1]]},
        {"$dict": {"a": 1}},
        {"$dict": [[1, 2], [1, 3]]},
        {"$dict": [[[], 2]]},
        {"$set": [[1]]},
        {"$int": "12"},
        {"$int": 12},
        {"$int": "0x" + "f" * 200_000},
        {"$float": "1.5"},
        {"$complex": [1.5]},
        {"$complex": ["a", "b"]},
        {"$bytes": "%%%"},
        {"$bytes": None},
        {"$long_bytes": "t"},
        {"$size": ["a"]},
        {"$size": [2**70]},
        {"$dtype": "os"},
        {"$device": "nowhere"},
        {"$tensor": "missing"},
        {"$tensor": ["t"]},
        {"$ndarray": "missing"},
        {"$tuple": {"$tuple": []}},
        {"no tensor": "is used"},
    ],
    ids=lambda tree: str(tree)[:30],
)
def test_a_tree_that_was_not_made_by_us_is_an_error_that_names_the_file(tree: Any) -> None:
    with pytest.raises(CheckpointCorruptError, match=r"state\.json"):
        decode(tree, {"t": torch.ones(2)}, "state.json")


def test_a_tree_that_is_nested_too_deeply_is_an_error() -> None:
    tree: Any = []
    for _ in range(500):
        tree = [tree]
    with pytest.raises(CheckpointCorruptError, match="nested"):
        decode(tree, {}, "state.json")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary(max_size=50)
    | st.sampled_from([torch.float16, torch.Size([1, 2]), torch.device("cpu")])
)
tensors = st.lists(st.floats(width=32), max_size=5).map(torch.tensor) | st.integers(0, 9).map(torch.tensor)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=15,
)


@given(trees)
def test_any_tree_of_values_comes_back_the_same(tree: Any) -> None:
    assert same(round_trip(tree), tree)


texts = st.lists(st.integers() | st.text(), max_size=20)


@given(texts | st.lists(st.frozensets(st.text(), max_size=3), max_size=10))
def test_the_same_set_is_the_same_text_in_whatever_order_it_was_made(members: list[Any]) -> None:
    members_backwards = members[::-1]
    forwards, backwards = set(members), set(members_backwards)
    assert json.dumps(encode({"it": forwards})[0]) == json.dumps(encode({"it": backwards})[0])
