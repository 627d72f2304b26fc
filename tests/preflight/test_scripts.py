"""Each script of ``mistakes/`` has one mistake, which is found before step 1; none of ``correct/`` has a finding."""

from __future__ import annotations

import gc
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import ArgumentError, HooklineError, SetupError
from hookline.loop import Trainer

HERE = Path(__file__).parent
MISTAKES = sorted((HERE / "mistakes").glob("*.py"))
CORRECT = sorted((HERE / "correct").glob("*.py"))
UNTRIED = {"custom_loop", "generator_in_the_batch"}
"""Correct scripts whose steps cannot be tried."""
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("*.py"))

# Torch warns itself about the broadcast of MSELoss.
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")


def check(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run the script as ``hookline check`` does, in this process, and return the findings."""
    report = folder / "report.json"
    wanted = {"report": str(report), "folder": str(folder / "run"), "full": False}
    monkeypatch.setenv("HOOKLINE_CHECK", json.dumps(wanted))
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert not ended.value.code
    written = json.loads(report.read_text())
    if script in CORRECT:  # Silence without a step proves nothing.
        assert bool(written["untried"]) == (script.stem in UNTRIED), written["untried"]
    found: list[dict[str, Any]] = written["findings"]
    return found


def expected(script: Path) -> str:
    lines = [line for line in script.read_text().splitlines() if line.startswith("Found as: ")]
    return lines[0].removeprefix("Found as: ")


def test_there_are_enough_scripts() -> None:
    assert len(MISTAKES) >= 40
    assert len(CORRECT) + len(EXAMPLES) >= 30


@pytest.mark.parametrize("script", [s for s in MISTAKES if "raises" not in expected(s)], ids=lambda script: script.stem)
def test_a_mistake_is_found(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(script, tmp_path, monkeypatch)
    assert expected(script) in [f"{each['level']} {each['check']}" for each in found]
    assert all(each["message"] and each["advice"] for each in found)


@pytest.mark.parametrize("script", [s for s in MISTAKES if "raises" in expected(s)], ids=lambda script: script.stem)
def test_a_mistake_that_raises_its_own_error_does_so_before_step_1(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = expected(script).removeprefix("raises ")
    found: list[dict[str, Any]] = []
    raised = ""
    try:
        found = check(script, tmp_path, monkeypatch)
    except HooklineError as error:  # Raised before the pre-flight.
        raised = type(error).__name__
    assert kind in [raised, *(each["check"] for each in found)]
    rows = [line for file in tmp_path.rglob("metrics.jsonl") for line in file.read_text().splitlines()]
    assert rows == []


@pytest.mark.parametrize("script", CORRECT, ids=lambda script: script.stem)
def test_a_correct_script_has_no_finding(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(script, tmp_path, monkeypatch) == []


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # The check leaves the script early.
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_has_no_finding(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(script, tmp_path, monkeypatch)
    gc.collect()
    assert found == []


def test_errors_stop_fit_before_step_1_and_are_reported_together_with_warnings() -> None:
    model, steps = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), []
    note = hl.on("train_step_end")(lambda run: steps.append(run.clock.step))
    data = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64) % 3), batch_size=8, shuffle=True)
    trainer = Trainer(max_duration="2ep", folder=False, device="cpu", callbacks=[note], preflight=True)
    with pytest.raises(SetupError, match="applies a softmax itself") as raised:
        trainer.fit(model, data, data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert "64 of 64 samples of the val loader are in the training data" in " ".join(str(raised.value).split())
    assert "test_scripts.py:" in str(raised.value)
    assert steps == []


def test_a_warning_is_printed_and_strict_makes_it_an_error() -> None:
    data = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64) % 3), batch_size=8, shuffle=True)
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD}
    options: dict[str, Any] = {"max_duration": "1ep", "folder": False, "device": "cpu"}
    with pytest.warns(hl.HooklineWarning, match=r"(?s)1 warning:.*shared-samples"):
        result = Trainer(**options, preflight=True).fit(nn.Linear(4, 3), data, data, **given)
    assert result.clock.step == 8
    with pytest.raises(SetupError, match="shared-samples"):
        Trainer(**options, preflight="strict").fit(nn.Linear(4, 3), data, data, **given)


def test_callbacks_and_sinks_take_part() -> None:
    class Refuses(hl.Callback):
        def preflight(self, run: hl.Run) -> list[hl.Finding]:
            return [hl.Finding("error", "licence", "There is no licence.", "Buy one.")]

    class Sink:
        def start(self, info: Any) -> None: ...
        def write(self, records: Any) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...
        def preflight(self) -> list[hl.Finding]:
            return [hl.Finding("error", "address", "Nobody is there.", "Start the server.")]

    data = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64) % 3), batch_size=8, shuffle=True)
    trainer = Trainer(max_duration="1ep", folder=False, callbacks=[Refuses()], sinks=[Sink()], preflight=True)
    with pytest.raises(SetupError, match=r"(?s)1 error:.*licence.*1 warning:.*address"):
        trainer.fit(nn.Linear(4, 3), data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(preflight='loose'\): must be True, False or 'strict'"):
        Trainer(preflight="loose")  # type: ignore[arg-type]


def test_the_command_prints_the_findings_and_exits_with_1(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hookline", "check"]
    done = subprocess.run(
        [*command, HERE / "mistakes" / "softmax_into_cross_entropy.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "1 error:\n  loss-input (softmax_into_cross_entropy.py:" in done.stdout
    assert "one epoch of training will take about 1 s" in done.stdout
    done = subprocess.run(
        [*command, HERE / "correct" / "logits.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "no mistakes found" in done.stdout
    assert list(tmp_path.iterdir()) == []
