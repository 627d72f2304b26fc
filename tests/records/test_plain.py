"""Settings of any kind become values that JSON, sinks and pages can show, and no secret is among them."""

from __future__ import annotations

import doctest
import json
import math
from argparse import Namespace
from collections import OrderedDict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookline.records import plain as module
from hookline.records.plain import LONGEST, plain, public


@dataclass
class Model:
    depth: int
    api_key: str = "hunter2"
    heads: tuple[int, ...] = (1, 2)
    inner: Any = None
    late: int = field(init=False)


@dataclass
class Length:
    steps: int

    def __str__(self) -> str:
        return f"{self.steps}st"


class Silent:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        ("text", "text"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float64("inf"), "inf"),
        (Fraction(1, 4), 0.25),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({7}, [7]),
        ({1: {"a": ()}}, {"1": {"a": []}}),
        (MappingProxyType(OrderedDict(a=1)), {"a": 1}),
        (Model(3, inner=Namespace(lr=0.1)), {"depth": 3, "api_key": "hunter2", "heads": [1, 2], "inner": {"lr": 0.1}}),
        (SimpleNamespace(a=(1,)), {"a": [1]}),
        (Length(7), "7st"),
        (Length, str(Length)),
        (PurePosixPath("a/b"), "a/b"),
        (torch.float16, "torch.float16"),
        (b"raw", "b'raw'"),
        (Silent(), "<Silent that cannot be shown: ZeroDivisionError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_setting_is_shown_as_what_it_is(value: Any, shown: Any) -> None:
    found = plain(value)
    assert found == shown
    assert type(found) is type(shown)


@dataclass
class Login:
    user: str
    word: str = field(default="hunter2", repr=False)


@dataclass
class Opaque:
    word: str

    def __repr__(self) -> str:
        return "Opaque(***)"


def test_what_a_dataclass_does_not_show_is_not_shown() -> None:
    """Whoever wrote it has hidden it for a reason."""
    assert plain({"a": Login("me"), "b": Opaque("hunter2")}) == {"a": {"user": "me"}, "b": "Opaque(***)"}


def test_an_object_with_a_long_text_is_cut() -> None:
    found = plain(torch.zeros(900))
    assert len(found) == LONGEST + 1
    assert found.startswith("tensor([0.")


def test_a_setting_that_holds_itself_does_not_stop_the_run() -> None:
    loop: dict[str, Any] = {"lr": 0.1}
    loop["self"], loop["again"] = [loop], loop
    found = public(loop)
    assert found["lr"] == 0.1
    assert "{...}" in found["again"]
    json.dumps(found, allow_nan=False)


def test_a_dataclass_that_holds_itself_does_not_stop_the_run() -> None:
    model = Model(1)
    model.inner = [model]
    assert public({"model": model})["model"]["api_key"] == "[redacted]"


@given(
    value=st.recursive(
        st.none() | st.floats() | st.integers() | st.text() | st.binary() | st.complex_numbers() | st.dates(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner)
        ),
        max_leaves=10,
    )
)
def test_whatever_is_given_is_json_and_stays_so(value: Any) -> None:
    found = plain(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found == plain(found)


def test_what_is_public_has_no_secret() -> None:
    assert public({"lr": 0.1, "api_key": "hunter2", "url": "https://u:hunter2@h"}) == {
        "lr": 0.1,
        "api_key": "[redacted]",
        "url": "https://[redacted]@h",
    }


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
