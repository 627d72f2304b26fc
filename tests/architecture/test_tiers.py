"""The tables of tiers in ``tests/conftest.py`` name tests that exist."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

from tests.conftest import PATHS, SMOKE

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
