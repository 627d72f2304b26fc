"""The leaderboard: the order of the runs, the columns, progress and time left; in ``ls`` and in ``compare``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from hookline.cli.main import main
from hookline.records import MetricRow, to_json
from hookline.records.run_file import ControlEntry, RunFile, SessionEntry
from hookline.report.leaderboard import Standing, differing, in_order, metrics_by_rank, standing_of
from hookline.report.read import read_run
from hookline.report.serve_runs import Glance

STARTED = "2030-01-01T00:00:00+00:00"


def make(folder: Path, status: Any = "finished", *, config: Any = None, control: Any = (), **values: float) -> Path:
    folder.mkdir(parents=True)
    rows = [MetricRow(f"val/{name}", 50, 2, value, "eval", 60.0) for name, value in values.items()]
    (folder / "metrics.jsonl").write_text(
        "".join(to_json(row) + "\n" for row in (MetricRow("train/loss", 50, 2, 3.0, "step", 60.0), *rows))
    )
    session = SessionEntry(STARTED, 0, status, last_step=50, last_epoch=2, seconds=60.0)
    RunFile(
        "digits",
        folder.name,
        "id",
        STARTED,
        config=config or {},
        settings={"max_duration": "200st"},
        sessions=(session,),
        control=control,
    ).write(folder)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make(tmp_path / "runs" / "a", loss=0.5, acc=0.7, config={"lr": 0.1, "width": 8})
    make(tmp_path / "runs" / "b", "running", loss=0.25, acc=0.6, config={"lr": 0.01, "width": 8})
    make(tmp_path / "runs" / "c", "failed", loss=math.nan, config={"lr": 0.01, "width": 8})
    return tmp_path / "runs"


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> list[list[str]]:
    """The rows of the first table that a command prints, as words."""
    assert main([str(word) for word in words]) == 0
    below = re.split(r"─\s*\n", capsys.readouterr().out, maxsplit=1)[1]
    return [line.split() for line in re.split(r"\n\s*\n", below)[0].splitlines()]


def names(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    return [line[0] for line in lines(capsys, *words)]


def test_a_run_has_its_state_progress_time_left_metrics_and_what_differs(
    capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    best = lines(capsys, "ls", runs)[0]
    assert best == ["b", "running", "50", "25", "%", "3", "m", "0.25", "0.6", "3", "0.01"]


def test_runs_are_sorted_by_any_metric_or_setting_and_those_without_it_are_last(
    capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    assert names(capsys, "ls", runs) == ["b", "a", "c"]  # By the first metric, val/loss. NaN is last.
    assert names(capsys, "ls", runs, "--sort", "val/acc") == ["a", "b", "c"]
    assert names(capsys, "ls", runs, "--sort", "lr")[-1] == "a"
    assert names(capsys, "ls", runs, "--sort", "progress")[0] == "a"
    assert names(capsys, "ls", runs, "--running") == ["b"]
    assert main(["ls", str(runs), "--sort", "val/auc"]) == 2
    assert "--sort val/auc: no run has it. Metrics: val/loss, val/acc, train/loss." in capsys.readouterr().err


def test_compare_prints_the_same_leaderboard(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    folders = [runs / name for name in "abc"]
    assert names(capsys, "compare", "--table", *folders) == ["b", "a", "c"]
    assert names(capsys, "compare", "--table", "--sort", "val/acc", *folders) == ["a", "b", "c"]


def test_a_glance_and_a_whole_read_give_the_same_standing(runs: Path) -> None:
    for folder in runs.iterdir():
        glance, whole = Glance(folder, "x").look().standing, standing_of(read_run(folder))
        assert repr(glance) == repr(whole) or glance.values.keys() == whole.values.keys()
        assert (glance.progress, glance.left, glance.settings) == (whole.progress, whole.left, whole.settings)


def test_a_setting_that_was_changed_while_the_run_trained_differs(tmp_path: Path) -> None:
    entry = ControlEntry("1", "set", 20, {"lr": 0.5}, {"lr": 0.1})
    refused = ControlEntry("2", "set", 20, {"lr": 9.0}, refused="no")
    folders = [make(tmp_path / "a", control=(entry, refused)), make(tmp_path / "b")]
    settings = [Glance(folder, "x").look().standing.settings for folder in folders]
    assert differing(settings) == ["live lr"]
    assert settings[0]["live lr"] == 0.5


def test_metrics_that_few_runs_have_come_last() -> None:
    values = [{"train/loss": 1.0, "val/loss": 1.0}, {"train/loss": 1.0, "val/loss": 1.0}, {"val/aa": 1.0}]
    assert metrics_by_rank(values) == ["val/loss", "train/loss", "val/aa"]


def test_equal_values_keep_their_order() -> None:
    standings = [Standing("running", "", 0, 0, 0.0, None, None, {"val/loss": value}, {}) for value in (1, 0, 1, 0)]
    assert in_order(standings, "val/loss") == [1, 3, 0, 2]


def test_rows_in_another_form_are_found(tmp_path: Path) -> None:
    """Another program may write the file without spaces, or with its fields in another order."""
    folder = make(tmp_path / "a", loss=0.5)
    line = '{"step":70,"epoch":3,"value":0.125,"kind":"eval","seconds":80.0,"name":"val/loss"}\n'
    (folder / "metrics.jsonl").write_text(line.replace("0.125", "0.5") + line.replace("0.125", "0.25") + line)
    assert Glance(folder, "x").look().standing.values == {"val/loss": 0.125}
