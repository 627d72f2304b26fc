"""``import hookline as hl``: every promised name is there, is found by tools, and is the one object."""

from __future__ import annotations

import ast
import importlib
import operator
import pickle
from importlib.metadata import version
from pathlib import Path

import pytest

import hookline
from hookline.events.foreign_names import NAMES as FOREIGN_NAMES


def test_each_name_is_there_once() -> None:
    assert len(set(hookline.__all__)) == len(hookline.__all__)


NAMES = [name for name in hookline.__all__ if name not in ("callbacks", "interop", "sinks")]
"""Without the three modules."""


def test_the_sinks_are_there() -> None:
    assert hookline.sinks is importlib.import_module("hookline.sinks")
    assert all(getattr(hookline.sinks, name) for name in hookline.sinks.__all__)


def test_every_name_can_be_imported_and_is_documented() -> None:
    found = {name: getattr(hookline, name) for name in NAMES}
    assert [name for name in NAMES if found[name] is not getattr(hookline, name)] == []
    assert [name for name in NAMES if not found[name].__module__.startswith("hookline.")] == []
    assert [name for name in NAMES if not found[name].__doc__] == []


def test_every_name_can_be_pickled_by_reference() -> None:
    found = {name: getattr(hookline, name) for name in NAMES}
    assert [name for name, kind in found.items() if pickle.loads(pickle.dumps(kind)) is not kind] == []


def test_dir_shows_the_everyday_names_and_the_module_of_callbacks_all_of_them() -> None:
    listed = set(dir(hookline))
    assert listed < set(hookline.__all__)
    assert {"Trainer", "fit", "callbacks", "sinks", "EarlyStopping", "Checkpointer"} <= listed
    assert 35 <= len(listed) <= 45
    assert set(hookline.callbacks.__all__) <= set(dir(hookline.callbacks))


def test_type_checkers_see_the_same_names_as_python() -> None:
    tree = ast.parse(Path(hookline.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.asname or alias.name): node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen.pop("*") == "hookline.callbacks"
    seen |= dict.fromkeys(hookline.callbacks.__all__, "hookline.callbacks")
    assert set(seen) == set(hookline.__all__)
    for name, module in seen.items():
        assert module is not None
        assert getattr(importlib.import_module(module), name) is getattr(hookline, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hookline' has no attribute 'Trainr'"):
        _ = hookline.Trainr  # type: ignore[attr-defined]
    assert not hasattr(hookline, "Trainr")


def test_a_name_of_another_system_says_ours() -> None:
    wrong = []
    for theirs, ours in FOREIGN_NAMES.items():
        with pytest.raises(AttributeError) as caught:
            getattr(hookline, theirs)
        hint = ours if " " in ours else f"did you mean hl.{ours}?"
        if not str(caught.value).endswith(f"has no attribute '{theirs}'; {hint}"):
            wrong.append((theirs, ours, str(caught.value)))
    assert wrong == []
    assert [
        ours for ours in FOREIGN_NAMES.values() if " " not in ours and not operator.attrgetter(ours)(hookline)
    ] == []


def test_the_version_is_that_of_the_package() -> None:
    assert hookline.__version__ == version("hookline")


def test_users_get_the_types() -> None:
    assert (Path(hookline.__file__).parent / "py.typed").exists()
