"""The benchmarks run and print their table. What they measure is never tested: see ``benchmarks/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = (
    "Step overhead",
    "of it, by the 30",
    "The loop's own Python",
    "nobody hears it",
    "import hookline.events",
    "growth from step 10,000 to 20,000",
    "the same without a permutation",
    "save, to write + fsync + hash",
    "later, against copy_",
    "Machine.",
)


@pytest.mark.timeout(600)  # a minute when the machine is quiet: torch is imported ten times, Lightning once
def test_every_benchmark_has_its_rows_in_the_table() -> None:
    command = [sys.executable, "benchmarks/run.py", "--quick", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing = [row for row in ROWS if row not in done.stdout]
    assert not missing, done.stdout
