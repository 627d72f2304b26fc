"""``hl.sinks``: every name is there, and no foreign library is imported before its sink is used."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

from hookline import sinks
from hookline.testing import run_script

FOREIGN = ("mlflow", "tensorboard", "wandb")
OWN = ("console", "csv_file", "jsonl", "line_file", "log_object", "memory", "pump", "sink")


def test_importing_the_sinks_imports_no_library_of_others() -> None:
    names = ("torch", "numpy", "pandas", *FOREIGN)
    script = f"""
        import sys
        import hookline.sinks
        from hookline.sinks import CSV, JSONL, Console, LogObject, Memory, RunInfo, Sink, SinkReport
        print(*[name for name in {names!r} if name in sys.modules])
    """
    done = run_script(script)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_tools_find_all_names_and_each_once() -> None:
    assert dir(sinks) == sorted(set(sinks.__all__))
    tree = ast.parse(Path(sinks.__file__).read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hookline.sinks")
        for alias in node.names
    }
    assert imported == set(sinks.__all__)


@pytest.mark.parametrize("name", sinks.__all__)
def test_every_name_can_be_had_and_is_documented(name: str) -> None:
    found = getattr(sinks, name)
    assert found.__doc__
    assert found is getattr(sinks, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'hookline\.sinks' has no attribute 'Tensorboard'"):
        _ = sinks.Tensorboard  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OWN)
def test_the_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"hookline.sinks.{name}")).failed == 0
