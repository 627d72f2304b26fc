"""Whatever a metric is called, MLflow and a disk take the name that it gets, and no two become one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.sinks.names import Keys, flat, shortened

validation = pytest.importorskip("mlflow.utils.validation")

NAMES = st.lists(
    st.text(st.sampled_from("ab./_-@#: ä\n"), max_size=8) | st.text(max_size=300), max_size=20, unique=True
)


@given(names=NAMES)
def test_every_name_becomes_one_that_mlflow_takes_and_no_two_the_same(names: list[str]) -> None:
    keys = Keys("hookline.name.", {})

    found = [keys(name) for name in names]

    assert len(set(found)) == len(names)
    for key in found:
        validation._validate_metric(key, 1.0, 0, 0)
        assert max(len(part.encode()) for part in key.split("/")) <= 200
        assert ".." not in key.split("/")
    for tag, name in keys.new_tags.items():
        validation._validate_tag(tag, name)


@given(names=NAMES, seed=st.integers(0, 99))
def test_after_a_resume_every_name_that_was_changed_is_changed_in_the_same_way(names: list[str], seed: int) -> None:
    first = Keys("hookline.name.", {})
    found = {name: first(name) for name in names}
    changed = [name for name, key in found.items() if key != name]

    resumed = Keys("hookline.name.", first.new_tags)
    random.Random(seed).shuffle(changed)

    assert {name: resumed(name) for name in changed} == {name: found[name] for name in changed}
    assert not resumed.new_tags


def test_names_that_need_no_change_stay() -> None:
    names = ["train/loss", "val/loss_epoch", "lr/AdamW", "val/größe 2.0-x"]
    keys = Keys("hookline.name.", {})
    assert [keys(name) for name in names] == names
    assert not keys.new_tags


def test_an_empty_configuration_has_no_parameters_and_an_empty_part_is_one() -> None:
    assert list(flat({})) == []
    assert list(flat({"model": {}, "sizes": []})) == [("model", "{}"), ("sizes", "[]")]


def test_a_text_that_just_fits_is_not_shortened() -> None:
    assert shortened("x" * 50, 50) == "x" * 50
    assert len(shortened("x" * 51, 50)) == 50
