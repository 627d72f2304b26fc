"""Two snapshots are equal to the last bit, or the place where they are not is named."""

from __future__ import annotations

import doctest
import math
from collections import OrderedDict
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.checkpoint import About, Snapshot, Store, compare
from hookline.checkpoint.compare import Difference
from hookline.checkpoint.compare import compare as differences

ABOUT = About(step=4, epoch=1, batch=4, sample=32, seconds=1.5, run="r", metrics={"val/loss": math.nan})


def snapshot(state: Any = None, **weights: torch.Tensor) -> Snapshot:
    return Snapshot(ABOUT, weights, state)


def paths(one: Any, other: Any, **options: Any) -> list[str]:
    return [found.path for found in differences(snapshot({"x": one}), snapshot({"x": other}), **options)]


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.complex_numbers()
)
TENSORS = st.builds(
    lambda values, dtype: torch.tensor(values, dtype=dtype),
    st.lists(st.integers(-100, 100), max_size=5),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool]),
)
TREES = st.recursive(
    PLAIN | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(TREES)
def test_a_copy_of_any_state_is_equal(tree: Any) -> None:
    assert paths(tree, deepcopy(tree)) == []


@settings(deadline=None)
@given(TREES, st.data())
def test_one_changed_value_anywhere_is_found_at_its_path(tree: Any, data: st.DataObject) -> None:
    other = {"a": [deepcopy(tree), 1.0], "b": deepcopy(tree)}
    changed = deepcopy(other)
    changed["a"][1] = data.draw(st.sampled_from([1, 1.0 + 2**-52, -1.0, None, "1.0", torch.ones(())]))  # type: ignore[index]
    assert paths(other, changed) == ["state/x/a/1"]


def test_a_save_and_a_load_are_equal_to_what_was_saved(tmp_path: Path) -> None:
    state = {
        "nan": math.nan,
        "ordered": OrderedDict(b=1, a=(2.5, None)),
        "t": torch.randn(3, 4).to(memory_format=torch.contiguous_format).t(),
        7: [torch.tensor(math.nan), -0.0],
        "array": np.arange(3.0),
    }
    one = snapshot(state, w=torch.randn(2, 2), empty=torch.empty(0, 3))
    assert differences(one, Store(tmp_path).load(Store(tmp_path).save(one))) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_the_last_bit_of_one_element_is_found(dtype: torch.dtype) -> None:
    one = torch.ones(3, 4).to(dtype)
    other = one.clone()
    raw = other.view(torch.uint8).view(3, 4, -1)
    raw[2, 1, 0] ^= 1
    (found,) = differences(snapshot(w=one), snapshot(w=other))
    assert (found.path, found.where) == ("weights/w", "at [2, 1], 1 of 12 differ")
    assert found.first == "1.0"
    assert found.second != "1.0"


def test_nan_is_equal_to_itself_and_not_to_another_nan() -> None:
    one = torch.tensor([math.nan, 1.0])
    assert paths(one, one.clone()) == []
    other = one.clone()
    other.view(torch.int32)[0] += 1
    assert bool(other.isnan()[0])
    assert paths(one, other) == ["state/x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (True, 1),
        ([1], (1,)),
        (complex(0, 0.0), complex(0, -0.0)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(2), [1.0, 1.0]),
        (OrderedDict(a=1), {"a": 1}),
        ({1: 0}, {"1": 0}),
        ({1, 2}, {1, 3}),
        (torch.float32, torch.float64),
        (np.arange(3), np.arange(3.0)),
        (np.array([0.0]), np.array([-0.0])),
        (torch.rand(2, 3, 4, 4), None),
        (b"a", b"b"),
    ],
)
def test_what_is_not_the_same_is_not_called_equal(one: Any, other: Any) -> None:
    assert paths(one, other)
    assert paths(other, one)
    assert not paths(one, one)


def test_another_order_in_memory_is_a_difference_because_sums_change() -> None:
    image = torch.rand(2, 3, 4, 4)
    assert paths(image, image.to(memory_format=torch.channels_last)) == ["state/x"]
    assert paths(image, image.clone()) == []


def test_the_order_of_keys_does_not_count() -> None:
    assert paths({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


def test_what_only_one_of_them_has_is_named_on_both_sides() -> None:
    found = differences(snapshot({"a": 1, "b": [1, 2]}), snapshot({"a": 1, "c": {}, "b": [1, 2, 3]}))
    assert found == [
        Difference("state/b", "2 items", "3 items"),
        Difference("state/c", "nothing", "a dict of 0"),
    ]


def test_a_scalar_tensor_shows_both_values() -> None:
    (found,) = differences(snapshot(w=torch.tensor(1.5)), snapshot(w=torch.tensor(2.5)))
    assert str(found) == "weights/w at [], 1 of 1 differ: 1.5 and 2.5"


def test_causes_come_before_the_weights() -> None:
    one = Snapshot(ABOUT, {"w": torch.zeros(1)}, {"scheduler": {"last_epoch": 4}})
    other = Snapshot(replace(ABOUT, sample=64), {"w": torch.ones(1)}, {"scheduler": {"last_epoch": 5}})
    assert [found.path for found in differences(one, other)] == [
        "about/sample",
        "state/scheduler/last_epoch",
        "weights/w",
    ]


def test_weights_only_and_full_are_different() -> None:
    (found,) = differences(snapshot(None), snapshot({}))
    assert found.path == "state"


def test_what_is_ignored_is_passed_over_with_all_below_it() -> None:
    one, other = {"clock": {"seconds": 1.0, "step": 1}, "log": [1]}, {"clock": {"seconds": 2.0, "step": 1}}
    assert paths(one, other) == ["state/x/clock/seconds", "state/x/log"]
    assert paths(one, other, ignore=["*/seconds", "state/x/log"]) == []
    assert paths(one, other, ignore=["state/x"]) == []


def test_the_examples_are_right() -> None:
    assert doctest.testmod(compare).failed == 0
