"""The examples of the five systems run here, print what they promise, and write what they promise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "from-the-seeds"
NAMES = (
    "classification_metrics",
    "counter",
    "custom_event",
    "epoch_monitor",
    "first_process_only",
    "pytorch_profiler",
    "training_report",
)


def run(name: str, folder: Path, *args: object) -> str:
    """What an example prints; all that it leaves in its folder is what it was told to write."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *map(str, args)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"},
        capture_output=True,
        text=True,
        timeout=300,  # a hang guard: each takes a few seconds
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def test_every_example_is_tested_and_listed() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NAMES)
    assert sorted(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text())) == sorted(NAMES)


def test_an_example_is_short() -> None:
    assert [name for name in NAMES if len((EXAMPLES / f"{name}.py").read_text().splitlines()) > 60] == []


def test_the_profiler_records_every_entry_point_once(tmp_path: Path) -> None:
    printed = run("pytorch_profiler", tmp_path / "here", tmp_path / "traces")
    entry_points = ("train", "fit", "evaluate", "predict")
    assert printed.splitlines() == [f"{name}: 12 steps, 1 trace" for name in entry_points]
    for name in entry_points:
        (path,) = (tmp_path / "traces" / name).iterdir()
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        assert {f"ProfilerStep#{step}" for step in range(4, 10)} <= names  # after 2 that wait and 2 that warm up
        assert not {"ProfilerStep#3", "ProfilerStep#10"} & names


def test_the_metrics_of_a_callback_are_in_the_history(tmp_path: Path) -> None:
    printed = run("classification_metrics", tmp_path)
    accuracies = json.loads(printed.splitlines()[0].partition(": ")[2])
    right, number, row = re.fullmatch(
        r"confusion matrix: (\d+) of (\d+) right, row of the eights (\[.*\])", printed.splitlines()[1]
    ).groups()  # type: ignore[union-attr]
    assert int(number) == 360  # each of the images, once
    assert accuracies[-1] == pytest.approx(int(right) / 360, abs=1e-3)
    assert 0.8 < accuracies[-1] <= 1
    assert sum(json.loads(row)) == 33  # the eights among the last 360 digits


def test_two_counters_get_their_own_state_back(tmp_path: Path) -> None:
    printed = run("counter", tmp_path / "here", tmp_path / "run")
    assert printed.splitlines() == [
        "epoch 2: Counter(what='epochs') has {'epochs': 2, 'batches': 0}",
        "epoch 2: Counter(what='batches') has {'epochs': 0, 'batches': 32}",
        "goes on with Counter(what='epochs'): {'epochs': 2, 'batches': 0}",
        "epoch 3: Counter(what='batches') has {'epochs': 0, 'batches': 48}",
        "epoch 3: Counter(what='epochs') has {'epochs': 3, 'batches': 0}",
    ]
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())][-1] == "step-00000048"


def test_a_monitor_in_every_form_hears_every_epoch(tmp_path: Path) -> None:
    printed = run("epoch_monitor", tmp_path).splitlines()
    for form in ("", " (by on_event)", " (by a lambda)"):
        assert [line for line in printed if line in {f"Epoch: {n}{form}" for n in range(9)}] == [
            f"Epoch: {epoch}{form}" for epoch in range(3)
        ]
    assert printed.count("Epoch: 2 (by a function, every second epoch)") == 1
    assert printed[-1] == "The end, after 3 epochs (by on_train_end)"
    assert len(printed) == 11


def test_the_report_predicts_after_each_epoch_and_at_the_end(tmp_path: Path) -> None:
    printed = run("training_report", tmp_path).splitlines()
    assert re.fullmatch(
        r"Starting the training! Experiment seeds/report started at: \d{4}-\d\d-\d\d \d\d:\d\d", printed[0]
    )
    epochs = [line for line in printed if line.startswith("Starting new epoch num")]
    assert epochs == [f"Starting new epoch num {number}" for number in range(len(epochs))]
    assert 2 <= len(epochs) < 10
    on_validation = [line for line in printed if line.startswith("Model predictions on validation: ")]
    assert len(on_validation) == len(epochs)
    assert [len(json.loads(line.partition(": ")[2])) for line in on_validation] == [18] * len(epochs)
    assert f"End of training! Stopped at epoch {len(epochs)}" in printed
    (on_test,) = (line for line in printed if line.startswith("Model predictions on test: "))
    assert len(json.loads(on_test.partition(": ")[2])) == 12
    assert re.fullmatch(r"val/loss = [\d.]+ has reached 0\.3; loss on the test set [\d.]+", printed[-1])


def test_only_the_first_process_runs_what_is_for_it(tmp_path: Path) -> None:
    # Not by lines: two processes print, and one may come between another's text and its line break.
    printed = re.findall(r"(?:every process|first process only): process \d of \d", run("first_process_only", tmp_path))
    assert sorted(printed) == [
        "every process: process 0 of 2",
        "every process: process 1 of 2",
        "first process only: process 0 of 2",
    ]


def test_a_custom_event_is_heard_and_can_refuse_a_batch(tmp_path: Path) -> None:
    assert run("custom_event", tmp_path).splitlines() == [
        "3 batches verified",
        "refused: images of shape (5, 1, 28, 28)",
        "in VerifyBatch.on_verify_train_batch at step 2, epoch 0 (train)",
    ]
