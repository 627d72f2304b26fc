"""Each example runs, ends soon and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

LAST_LINES = {
    "01_plain_model.py": (r"accuracy on 360 held-out digits: ([\d.]+)", 0.93, 1.0),
    "02_task.py": (r"training accuracy ([\d.]+)", 0.97, 1.0),
    "03_own_loop.py": (r"validation: [\d.]+ -> ([\d.]+)", 0.2, 0.75),
    "04_gan.py": (r"([\d.]+) \+- [\d.]+ after it", 1.6, 2.4),
    "05_lbfgs.py": (r"accuracy on 360 held-out digits: ([\d.]+)", 0.87, 1.0),
    "06_tokens.py": (r"held out: ([\d.]+) bits", 1.0, 4.2),
    "07_resume.py": (r"val/loss at the end: ([\d.]+)", 0.2, 0.45),
}


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(LAST_LINES)


@pytest.mark.parametrize("name", LAST_LINES)
def test_an_example(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,  # a hang guard: each takes a few seconds
    )
    assert done.returncode == 0, done.stderr
    pattern, least, most = LAST_LINES[name]
    found = re.search(pattern, done.stdout)
    assert found, done.stdout
    assert least <= float(found[1]) <= most, done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_example_is_short() -> None:
    assert [name for name in LAST_LINES if len((EXAMPLES / name).read_text().splitlines()) >= 60] == []
