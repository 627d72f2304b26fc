"""What is generated is up to date, and every example in the source runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hookline

ROOT = Path(__file__).parents[2]
MODULES = ["hookline", *(module.name for module in pkgutil.walk_packages(hookline.__path__, "hookline."))]
PACKAGES: dict[str, list[str]] = {}
for _name in MODULES:
    PACKAGES.setdefault(_name.rpartition(".")[0] or _name, []).append(_name)


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


@pytest.mark.parametrize("package", PACKAGES)
def test_the_examples_of_a_package_run(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    modules = map(importlib.import_module, PACKAGES[package])
    examples = [test for module in modules for test in finder.find(module) if test.examples]
    failed = []
    for number, example in enumerate(examples):
        folder = tmp_path / str(number)  # an example may make a run's folder
        folder.mkdir()
        monkeypatch.chdir(folder)
        torch.manual_seed(0)
        if runner.run(example).failed:
            failed.append(example.name)
    assert failed == []


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    count = sum(bool(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert count >= 25
