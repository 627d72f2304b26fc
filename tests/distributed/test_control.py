"""``hookline stop``, ``save``, ``eval`` and ``set`` from another process, on one process and on two ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hookline.records.run_file import RunFile
from tests.support import json_lines, saved_steps, wait_until

CASE = "cases_of_control.py:train"
COMMANDS = (["save"], ["eval"], ["set", "lr=0.001", "patience=77"])
MOMENTS = {"starts": ("on_setup", 0), "trains": ("on_train_step_start", 3), "evaluates": ("on_eval_batch_end", 5)}
MOMENTS |= {"saves": ("on_checkpoint_save", 1)}


def command(run: Path, name: str, *rest: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "hookline", name, str(run), *rest, "--wait", "190"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def asked(run: Path) -> int:
    return len(list((run / "control").glob("[0-9]*.json")))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_command_works_at_any_moment(ranks: Any, tmp_path: Path, moment: str, size: int) -> None:
    hook, at = MOMENTS[moment]
    run = tmp_path / "run"
    started = ranks.start(CASE, size, hook=hook, at=at, folder=str(tmp_path))
    if moment == "saves":
        wait_until(lambda: (run / "run.json").exists(), "the run trains")
        command(run, "save").communicate()
    started.wait_for(tmp_path / "here")
    asking = [command(run, name, *rest) for name, *rest in COMMANDS]
    wait_until(lambda: asked(run) == len(COMMANDS), "all commands have asked")
    (tmp_path / "go").touch()
    said = [each.communicate(timeout=200) for each in asking]
    assert [each.returncode for each in asking] == [0, 0, 0], said
    assert said[2][0].startswith("set lr=0.001 (was 0.1) EarlyStopping.patience=77 (was 10000) from step ")
    last = command(run, "stop")
    assert last.communicate(timeout=200)[0].startswith("stop at step ")
    told = started.finish()
    assert [its.code for its in told] == [0] * size, told[0].output
    values = [its.value for its in told]
    assert all(value == values[0] for value in values)
    assert (values[0]["reason"], values[0]["patience"], values[0]["lr"]) == ("hookline stop", 77, [0.001])

    entries = RunFile.read(run).control
    by_name = {entry.command: entry for entry in entries}
    assert by_name["stop"].step == values[0]["step"]
    assert by_name["save"].step in saved_steps(run)
    evaluated = [row["step"] for row in json_lines(run / "events.jsonl") if row["name"] == "eval"]
    assert {by_name["eval"].step, by_name["eval"].step + 1} & set(evaluated)


@pytest.mark.parametrize("size", [1, 2])
def test_a_request_to_a_run_that_ends_says_so(ranks: Any, tmp_path: Path, size: int) -> None:
    run = tmp_path / "run"
    started = ranks.start(CASE, size, hook="on_fit_end", folder=str(tmp_path), steps=20)
    started.wait_for(tmp_path / "here")
    asking = [command(run, name, *rest) for name, *rest in (*COMMANDS, ["stop"])]
    wait_until(lambda: asked(run) == 4, "all commands have asked")
    (tmp_path / "go").touch()
    said = [each.communicate(timeout=200)[1] for each in asking]
    assert [each.returncode for each in asking] == [1] * 4, said
    assert all("the run ended before it took the request" in its for its in said)
    assert [its.code for its in started.finish()] == [0] * size
    late = command(run, "stop")
    assert "has ended at step 20: finished" in late.communicate(timeout=200)[1]
    assert late.returncode == 2


def test_a_request_to_a_killed_run_says_so(ranks: Any, tmp_path: Path) -> None:
    started = ranks.start(CASE, 1, hook="on_train_step_end", at=3, folder=str(tmp_path))
    started.wait_for(tmp_path / "here")
    waiting = command(tmp_path / "run", "stop")
    wait_until(lambda: asked(tmp_path / "run") == 1, "the command has asked")
    started.send(signal.SIGKILL)
    started.finish()
    assert "the run ended before it took the request" in waiting.communicate(timeout=200)[1]
    assert asked(tmp_path / "run") == 0
    late = command(tmp_path / "run", "stop")
    assert "is no longer running: its process was killed" in late.communicate(timeout=200)[1]
    assert (waiting.returncode, late.returncode) == (1, 2)
