"""Each example runs, ends soon and prints what it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[1] / "examples"

LAST_LINES = {
    "01_plain_model.py": (r"accuracy on 360 held-out digits: ([\d.]+)", 0.93, 1.0),
    "02_task.py": (r"training accuracy ([\d.]+)", 0.97, 1.0),
    "03_own_loop.py": (r"validation: [\d.]+ -> ([\d.]+)", 0.2, 0.75),
    "04_gan.py": (r"([\d.]+) \+- [\d.]+ after it", 1.6, 2.4),
    "05_lbfgs.py": (r"accuracy on 360 held-out digits: ([\d.]+)", 0.87, 1.0),
    "06_tokens.py": (r"held out: ([\d.]+) bits", 1.0, 4.2),
    "07_resume.py": (r"val/loss at the end: ([\d.]+)", 0.2, 0.45),
    "08_tracked_experiment.py": (r"test/accuracy: ([\d.]+)", 0.8, 1.0),
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


def test_the_tracked_experiment_leaves_everything_that_explains_it(tmp_path: Path) -> None:
    example = EXAMPLES / "08_tracked_experiment.py"
    subprocess.run([sys.executable, example, tmp_path / "run"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    final = tmp_path / "run" / "final"
    settings = json.loads((final / "settings.json").read_text())
    assert (settings["config"]["hidden"], settings["config"]["lr"]) == (64, 0.003)
    metrics = json.loads((final / "metrics.json").read_text())
    assert {"train/loss", "val/accuracy", "test/confusion"} <= set(json.dumps(metrics).split('"'))
    with zipfile.ZipFile(final / "source.zip") as source:
        assert [source.read(name) for name in source.namelist()] == [example.read_bytes()]
    saved = load_file(final / "predictions-test.safetensors")
    assert (len(saved["predictions"]), len(saved["labels"])) == (297, 297)
    assert "test/confusion" in (tmp_path / "run" / "report.html").read_text()


def test_an_example_is_short() -> None:
    assert [name for name in LAST_LINES if len((EXAMPLES / name).read_text().splitlines()) >= 60] == []
