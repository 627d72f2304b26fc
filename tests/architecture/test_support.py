"""Helpers that many tests need are in ``tests/support``, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"

OTHER_TRAINERS = {"tests/interop"}
"""Folders of tests that compare Hookline with the trainer of another library, with the same arguments for both."""

EXCEPTIONS = {
    "tests/events/test_foreign_names.py::fit_with": "passes keywords that `Trainer.fit` must refuse",
}
"""Functions that train with the options of their caller, and the reasons."""


def private_fits() -> Iterator[str]:
    """Functions outside ``tests/support`` that are named ``fit``, or that train with the options of their caller."""
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS.parent).as_posix()
        if path.is_relative_to(SUPPORT) or any(name.startswith(folder) for folder in OTHER_TRAINERS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (node.name == "fit" or trains_with_options(node)):
                yield f"{name}::{node.name}"


def trains_with_options(function: ast.FunctionDef) -> bool:
    """True if the function makes a trainer, passes options on, and returns the result of the trainer's ``fit``."""
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    fits = [node for node in returns if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return (
        (function.args.vararg or function.args.kwarg) is not None
        and not {"Trainer", "hl.Trainer", "hl.fit"}.isdisjoint(calls)
        and any(node.func.attr == "fit" for node in fits)
    )


def test_no_test_has_its_own_fit() -> None:
    """``tests.support.fit`` is the one place that knows how a test trains."""
    found = list(private_fits())
    assert [name for name in found if name not in EXCEPTIONS] == []
    assert set(EXCEPTIONS) == set(found), "a reason for nothing"


def test_a_private_fit_is_found() -> None:
    source = """
def quick(*callbacks, **options):
    return hl.Trainer(callbacks=callbacks, folder=False, **options).fit(TinyModel(), tiny_data())

def weights(**options):
    return hl.fit(TinyModel(), tiny_data(), **options)

def shared(**options):
    return fit(max_duration="1ep", **options)

def twice(*callbacks):
    trainer = Trainer(callbacks=callbacks, folder=False)
    fit(trainer=trainer)
    return fit(trainer=trainer, extend="2ep")
"""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if trains_with_options(node)] == ["quick", "weights"]
