"""The tables of tiers in ``tests/conftest.py`` name tests that exist, and the scan finds who starts a process."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import PATHS, SMOKE, helper_starts_process, helpers_in

ROOT = Path(__file__).parents[2]


def test_every_smoke_test_exists() -> None:
    """A smoke test that is renamed would leave the fast tier unnoticed."""
    gone = []
    for test in SMOKE:
        file, _, name = test.partition("::")
        body = ast.parse((ROOT / file).read_text()).body if (ROOT / file).exists() else []
        if name.partition("[")[0] not in {node.name for node in body if isinstance(node, ast.FunctionDef)}:
            gone.append(test)
    assert gone == []


def test_every_pattern_matches_a_file() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    unused = [pattern for pattern in PATHS if not any(fnmatchcase(file, pattern.partition("::")[0]) for file in files)]
    assert [pattern for pattern in unused if "[[]" not in pattern] == []


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("files", "small_disk", True),  # a context manager, which mounts a file system
        ("rank_server", "RankServer", True),  # a class
        ("training", "fit", False),
    ],
)
def test_a_helper_that_starts_a_process_is_found(file: str, name: str, expected: bool) -> None:
    helper = getattr(import_module(f"tests.support.{file}"), name)
    assert [helper_starts_process(found) for found in helpers_in(helper)] == [expected]
    assert [helper_starts_process(found) for found in helpers_in({"a table": [helper]})] == [expected]
