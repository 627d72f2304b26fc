"""``hookline verify-resume`` passes a script that resumes well and names the fault of one that does not.

The scripts here obey the environment variable by hand, with nothing but a store: what is tested is the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hookline.cli.main import main
from hookline.testing import start_script

SCRIPT = """
import json, os, sys, time
import torch
from torch import nn
from hookline.checkpoint import About, Snapshot, Store

fault = sys.argv[1] if len(sys.argv) > 1 else ""
wanted = json.loads(os.environ["HOOKLINE_VERIFY_RESUME"])
store = Store(wanted["folder"] + "/checkpoints")
torch.manual_seed(0)
data, target = torch.randn(32, 4), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
# By hand: what torch.optim imports at the first step takes as long as all the rest.
moments = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
scheduled, counted, step = 0, 0, 0
if fault == "fails":
    raise ValueError("planted")
if wanted["resume"]:
    saved = store.load(store.latest())
    step = saved.about.step
    model.load_state_dict(dict(saved.weights))
    moments = saved.state["optimizer"]
    scheduled = saved.state["scheduler"]["last_epoch"]
    if fault != "forgets the generator":
        torch.set_rng_state(saved.state["rng"])
    if fault != "forgets a callback":
        counted = saved.state["callbacks"]["Counter"]["counted"]
    if fault == "steps the scheduler twice":
        scheduled += 1
if fault == "unseeded":
    data += torch.randn(32, 4, generator=torch.Generator().manual_seed(time.time_ns()))
while step < (3 if fault == "short" else wanted["stop_at"]):
    epoch, batch = divmod(step, 4)
    seed = epoch + (100 if fault == "reshuffles" and wanted["resume"] else 0)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(seed))
    rows = order[batch * 8 : batch * 8 + 8]
    model.zero_grad()
    nn.functional.mse_loss(model(data[rows]), target[rows]).backward()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            moments[name].mul_(0.9).add_(weight.grad)
            weight.sub_(moments[name], alpha=0.1 / (1 + scheduled // 3))
    scheduled += 1
    counted += 1
    step += 1
    if step in wanted["save_at"]:
        state = {
            "clock": {"step": step, "seconds": time.time()},
            "rng": torch.get_rng_state(),
            "callbacks": {"Counter": {"counted": counted}},
            "scheduler": {"last_epoch": scheduled},
            "optimizer": moments,
        }
        about = About(step, epoch, step, step * 8, time.time(), str(os.getpid()), int(wanted["resume"]))
        store.save(Snapshot(about, model.state_dict(), state))
        if fault == "hangs":
            print("hanging", flush=True)
            time.sleep(600)
print("a line of the script's own")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


class Verify:
    """The command in this process, which has imported torch already; the scripts run in their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        code = main(["verify-resume", *map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *self._capsys.readouterr())


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    return Verify(capsys)


def test_a_script_that_resumes_well_is_equal(verify: Verify, script: Path, tmp_path: Path) -> None:
    done = verify("--steps", 10, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "uninterrupted: 10 steps",
        "killed: after the checkpoint of step 5",
        "resumed: from step 5 to 10",
        "equal: at step 10 the resumed run is bitwise equal to the uninterrupted run",
    ]
    assert list(tmp_path.iterdir()) == [script]  # it leaves nothing behind


@pytest.mark.parametrize(
    ("fault", "step", "first"),
    [
        ("forgets a callback", 6, "state/callbacks/Counter/counted: 6 and 1"),
        ("steps the scheduler twice", 6, "state/scheduler/last_epoch: 6 and 7"),
        ("forgets the generator", 6, "state/rng at ["),
        ("reshuffles", 6, "state/optimizer/0.weight at [0, 0]"),
    ],
)
def test_a_fault_in_the_resume_is_found_right_after_it_and_named(
    verify: Verify, script: Path, fault: str, step: int, first: str
) -> None:
    done = verify("--steps", 10, script, fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\ndifferent at step {step}\n  first: {first}" in done.stdout


def test_a_script_that_does_not_repeat_itself_is_told_from_a_bad_resume(verify: Verify, script: Path) -> None:
    done = verify("--steps", 10, script, "unseeded")
    assert done.returncode == 1
    assert "different before the kill: two runs from the start differ at step 5" in done.stdout
    assert "Seed all its random generators" in done.stdout
    assert "resumed:" not in done.stdout


def test_an_error_of_the_script_is_shown_with_its_last_lines(verify: Verify, script: Path) -> None:
    done = verify("--steps", 10, script, "fails")
    assert done.returncode == 2
    assert "The script ended with exit code 1" in done.stderr
    assert "ValueError: planted" in done.stderr


def test_a_script_that_saves_nothing_is_told_so(verify: Verify, script: Path) -> None:
    done = verify("--steps", 10, script, "short")
    assert (done.returncode, done.stdout) == (2, "")
    assert "The script saved nothing. It must train with Hookline" in done.stderr


def test_bad_arguments_are_one_line(verify: Verify, script: Path, tmp_path: Path) -> None:
    for arguments, said in (((tmp_path / "gone.py",), "is not a file"), (("--steps", 2, script), "must be 4 or more")):
        done = verify(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr


def test_an_interrupt_leaves_no_process_behind(script: Path) -> None:
    source = "import sys; from hookline.cli.main import main; main(sys.argv[1:])"
    with start_script(source, args=["verify-resume", "--steps", 10, script, "hangs"]) as command:
        children: list[int] = []
        end = time.monotonic() + 200
        while not (children and "hanging" in log_of(children[0])):
            assert time.monotonic() < end, command.stderr
            children = children_of(command.process.pid)
            time.sleep(0.02)
        command.send(signal.SIGINT)
        command.finish()
    assert not any(alive(child) for child in children)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def log_of(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1")).read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
