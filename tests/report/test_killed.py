"""A run whose process was killed is not shown as running, and one that runs is."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline.records import EventRow, MetricRow, to_json
from hookline.records.run_file import RunFile, SessionEntry
from hookline.report.about import events_of, sessions_of, status_of
from hookline.report.lock import LOCK, is_free
from hookline.report.page import compare_data, page_data
from hookline.report.read import read_run
from hookline.report.serve_runs import Glance
from hookline.report.serve_site import WatchedSite

RUNS = """
import sys, time, torch, hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
def wait(run):
    print("here", flush=True)
    time.sleep(600)
waits = hl.on("train_step_end", at="5st")(wait)
Trainer(max_duration="9ep", folder=sys.argv[1], log_every="1st", callbacks=[waits]).fit(
    TinyModel(), tiny_data(3), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
"""
GONE = "no longer running (killed?)"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real run in ``run``, which has come to step 5 and waits."""
    with subprocess.Popen([sys.executable, "-c", RUNS, str(tmp_path / "run")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"here\n"
            yield process
        finally:
            process.kill()


def test_a_real_run_is_running_until_it_is_killed(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    glance, site = Glance(folder, "a"), WatchedSite(tmp_path)
    (name,) = site.runs.find()
    data = site._read([name])
    assert data is not None
    for _ in range(2):
        assert status_of(read_run(folder))["label"] == glance.look().label == data[1]["status"]["label"] == "running"
        assert site._read([name], data[0]) == (data[0], {})

    process.send_signal(signal.SIGKILL)
    process.wait()
    run = read_run(folder)
    found = page_data(run)
    assert (found["status"]["key"], found["status"]["label"]) == ("gone", GONE)
    assert "resume" in found["status"]["reason"]
    assert (found["sessions"][-1]["label"], found["sessions"][-1]["last_step"]) == (GONE, 4)
    assert [its["status"]["label"] for its in compare_data([run, run])["runs"]] == [GONE, GONE]
    assert glance.look().label == GONE
    site._open[name].rests_until = 0  # a page that was just made rests
    fresh = site._read([name], data[0])
    assert fresh is not None
    assert fresh[1]["status"]["label"] == GONE
    site._open[name].rests_until = 0
    assert site._read([name], fresh[0]) == (fresh[0], {})


def about(folder: Path, status: Any = "running") -> None:
    session = SessionEntry("2030-01-01T00:00:00+00:00", status=status)
    RunFile("p", "a", "id", "2030-01-01T00:00:00+00:00", sessions=(session,)).write(folder)


def test_where_nothing_can_be_told_a_run_runs(tmp_path: Path) -> None:
    about(tmp_path)
    assert not is_free(tmp_path / "nowhere")
    assert status_of(read_run(tmp_path))["key"] == "running"  # no lock was ever made
    (tmp_path / LOCK).symlink_to(tmp_path / "run.json")
    assert status_of(read_run(tmp_path))["key"] == "running"


def test_a_lock_is_asked_about_and_left_as_it_was(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as file:
        assert is_free(tmp_path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not is_free(tmp_path)
        fcntl.flock(file, fcntl.LOCK_UN)
    assert is_free(tmp_path)


def test_a_run_that_ends_while_it_is_read_has_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about(tmp_path)

    def ends(folder: Path) -> bool:
        about(folder, "finished")
        return True

    monkeypatch.setattr("hookline.report.read.is_free", ends)
    assert status_of(read_run(tmp_path))["key"] == "running"


def test_the_events_of_a_killed_session_come_before_those_of_the_next(tmp_path: Path) -> None:
    """The next one goes on from a checkpoint, and counts its seconds from there."""
    rows = [
        EventRow("start", 0, 0, 0.0),
        EventRow("checkpoint", 20, 1, 2.0),
        EventRow("eval", 25, 1, 2.4, took=0.5),
        EventRow("killed", 26, 1, 3.0),
        EventRow("resume", 20, 1, 2.0),
        EventRow("eval", 25, 1, 2.5),
        EventRow("end", 30, 1, 4.0),
    ]
    (tmp_path / "events.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    (tmp_path / "metrics.jsonl").write_text(to_json(MetricRow("train/loss", 30, 1, 0.5, "step", 4.0)) + "\n")
    run = read_run(tmp_path)
    found = [(row["name"], row["step"]) for row in events_of(run)["rows"]]
    assert found == [(row.name, row.step) for row in rows]
    assert status_of(run)["key"] == "finished"
    assert sessions_of(run) == []
