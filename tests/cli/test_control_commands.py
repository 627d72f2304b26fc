"""``hookline stop``, ``save``, ``eval`` and ``set``: what they print without a run that trains, and with one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.cli.main import main
from hookline.records.control import ControlRequest
from tests.support import fit, set_control_interval, wait_until


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    fit(folder=tmp_path / "run", max_duration="1ep")
    return tmp_path / "run"


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The error of a command that cannot ask."""
    assert main([str(word) for word in words]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    return shown.err.strip()


@pytest.mark.parametrize("command", ["stop", "save", "eval"])
def test_a_finished_run_cannot_be_asked(capsys: pytest.CaptureFixture[str], finished: Path, command: str) -> None:
    why = refused(capsys, command, finished)
    assert why == f"hookline {command}: {finished} has ended at step 4: finished (max_duration (1ep) reached)."
    assert not (finished / "control").exists()


def test_a_folder_that_is_no_run_cannot_be_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "does not exist. Give the folder of a run" in refused(capsys, "stop", tmp_path / "none")
    assert "is not a run: it has no run.json. 'hookline ls' lists runs." in refused(capsys, "stop", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert "is not a run that Hookline can read" in refused(capsys, "stop", tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_only_the_owner_can_ask(capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    os.chown(finished, 65534, 65534)
    assert "Only the owner of a run can control it." in refused(capsys, "stop", finished)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["lr"], "'lr' is not a setting. Write name=value, such as lr=1e-4."),
        (["=3"], "'=3' is not a setting."),
        (["lr=1", "lr=2"], "lr is given twice."),
    ],
)
def test_words_that_are_no_settings_are_refused(
    capsys: pytest.CaptureFixture[str], finished: Path, words: list[str], why: str
) -> None:
    assert why in refused(capsys, "set", finished, *words)


def test_a_run_that_trains_is_asked_and_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes through the file, the thread that finds it, and ``run.json``."""
    set_control_interval(monkeypatch, 0.01)
    codes: list[int] = []

    def ask() -> None:
        codes.append(main(["set", str(tmp_path / "run")]))
        codes.append(main(["set", str(tmp_path / "run"), "patience=9", "lr=1e-3"]))
        codes.append(main(["set", str(tmp_path / "run"), "patience=-9"]))
        codes.append(main(["stop", str(tmp_path / "run")]))

    thread = threading.Thread(target=ask)
    result = fit(
        hl.LambdaCallback(on_train_start=lambda run: thread.start()),
        hl.EarlyStopping("train/loss", decide_at="epoch", patience=10**6),
        folder=tmp_path / "run",
        max_duration=f"{10**7}st",
    )
    thread.join()
    assert (result.stop_reason, codes) == ("hookline stop", [0, 0, 1, 0])
    shown = capsys.readouterr()
    assert "EarlyStopping.patience=1000000" in shown.out.splitlines()
    assert "set EarlyStopping.patience=9 (was 1000000) lr=0.001 (was 0.1) from step" in shown.out
    assert "refused at step" in shown.err


def test_a_command_that_does_not_wait_says_what_happens_next(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def ask(run: Any) -> None:
        assert main(["stop", str(run.folder), "--wait", "0"]) == 3
        wait_until(lambda: run.loop.engine.requests.asked.control, "the thread has seen the request")

    result = fit(hl.on("train_step_start", every="2st")(ask), folder=tmp_path / "run", max_duration="9ep")
    assert result.clock.step < 4
    assert "stop: the run takes the request at the end of a step." in capsys.readouterr().out


def test_no_other_user_can_read_or_add_requests(tmp_path: Path) -> None:
    ControlRequest.new("stop").write(tmp_path)
    assert (tmp_path / "control").stat().st_mode & 0o077 == 0
