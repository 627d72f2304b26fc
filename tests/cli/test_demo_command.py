"""``hookline demo``: the first thing that a newcomer runs, in a process of its own as they do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.cli.main import main

pytest.importorskip("sklearn", reason="the digits are in scikit-learn, which is in the extra [demo]")


def demo(*arguments: str, cwd: Path) -> str:
    """What it prints. No limit of time is tested: the one here is a guard against hanging."""
    done = subprocess.run(
        [sys.executable, "-m", "hookline.cli.main", "demo", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_learns_the_digits_stops_early_and_says_why_what_it_cost_and_where_it_is(tmp_path: Path) -> None:
    shown = demo(cwd=tmp_path)
    accuracy = re.search(r"held-out accuracy\s+([\d.]+)", shown)
    assert accuracy, shown
    assert float(accuracy[1]) >= 0.97
    assert re.search(r"epoch \d+/30 step 40/40 val/loss [\d.]+ train/loss [\d.]+ train/acc", shown)
    assert re.search(r"stopped because\s+val/loss has not improved on", shown)
    assert re.search(r"stopped by\s+EarlyStopping", shown)
    assert re.search(r"callback\s+hook\s+calls\s+ms\s+share", shown)
    assert re.search(r"ProgressBar\s+on_\w+\s+[\d,]+\s+[\d.]+\s+[\d.]+%", shown)
    folder = re.search(r"The run's folder: (\S+)", shown)
    assert folder, shown
    files = {path.name for path in (tmp_path / folder[1]).iterdir()}
    assert {"run.json", "metrics.jsonl", "log.txt", "report.html"} <= files
    assert (tmp_path / folder[1]).is_relative_to(tmp_path / "runs" / "demo")


def test_epochs_and_folder_are_as_asked_and_a_seed_gives_the_same_numbers_again(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((3, 3, 4)):
        shown = demo("--epochs", "1", "--seed", str(seed), "--folder", str(tmp_path / f"run {number}"), cwd=tmp_path)
        assert re.search(r"trained\s+1 epoch, 40 steps, 1,257 samples", shown)
        assert (tmp_path / f"run {number}" / "report.html").exists()
        found.append(re.findall(r"(?:held-out accuracy|best val/loss)\s+([\d.]+)", shown))
    assert found[0] == found[1] != found[2]


def test_explain_says_who_runs_when_and_why_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Order of the callbacks")
    assert any(
        re.fullmatch(r"  \d+\. EarlyStopping\(.*\) \[required\]: reads what others write", line) for line in lines
    )
    heard = lines.index("on_fit_end: the fit is over, final test included")
    assert lines[heard + 1] == "  1. HistoryPlot: reads everything: last"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("epochs", ["0", "-1"])
def test_no_epochs_are_an_error_in_one_line(epochs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--epochs", epochs]) == 2
    assert capsys.readouterr().out.splitlines() == [f"--epochs {epochs}: must be 1 or more."]
