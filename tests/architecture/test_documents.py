"""What is generated is up to date, and every example in the source runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hookline

ROOT = Path(__file__).parents[2]
MODULES = ["hookline", *(module.name for module in pkgutil.walk_packages(hookline.__path__, "hookline."))]


def test_the_generated_files_are_up_to_date() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "hookline.cli.docs", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may make a run's folder
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    count = sum(bool(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert count >= 25
