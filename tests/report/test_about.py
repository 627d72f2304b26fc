"""The page tells how a run ended, what it cost and with which settings, from whatever is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.records import EventRow, MetricRow, to_json
from hookline.records.event import restore_text
from hookline.records.run_file import CallbackEntry, RunFile
from hookline.report import render_compare, render_report
from hookline.report.about import (
    PutBack,
    call,
    costs_of,
    events_of,
    facts_of,
    flat,
    put_back_of,
    sessions_of,
    settings_of,
    status_of,
    trainer_settings,
)
from hookline.report.page import page_data
from hookline.report.read import RunData, read_run
from hookline.report.serve_runs import Glance

ENDINGS = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped early",
    "interrupted": "interrupted",
    "preempted": "preempted",
    "failed": "failed",
    "killed": "killed",
}


@pytest.mark.parametrize("status", ENDINGS)
def test_each_way_to_end_has_its_words_and_its_reason(samples: ModuleType, tmp_path: Path, status: str) -> None:
    found = status_of(read_run(samples.make_run(tmp_path / "run", rows=60, status=status)))
    assert (found["key"], found["label"], found["reason"]) == (status, ENDINGS[status], samples.REASONS[status])
    assert found["by"] == ("EarlyStopping" if status == "stopped" else None)


@pytest.mark.parametrize("status", ["finished", "interrupted", "preempted", "failed"])
def test_without_a_run_file_the_events_tell_how_it_ended(samples: ModuleType, tmp_path: Path, status: str) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60, status=status)
    (folder / "run.json").unlink()
    assert status_of(read_run(folder))["key"] == status
    (folder / "events.jsonl").write_text("")
    assert status_of(read_run(folder))["key"] == "unknown"


def test_the_facts_are_those_of_the_run_file_and_of_the_rows_if_they_are_newer(
    samples: ModuleType, tmp_path: Path
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=600, seed=1)
    facts = facts_of(read_run(folder))
    assert (facts["project"], facts["name"], facts["seed"]) == ("cifar", "run", 1)
    assert (facts["steps"], facts["epochs"], facts["git"]["dirty"]) == (1_000, 10, True)
    (folder / "run.json").unlink()
    alone = facts_of(read_run(folder))
    assert (alone["steps"], alone["epochs"], alone["name"], alone["git"]) == (1_000, 10, "run", None)
    assert alone["seconds"] == pytest.approx(facts["seconds"])


def test_costs_are_summed_over_sessions_and_the_dearest_is_first(samples: ModuleType, tmp_path: Path) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    once = costs_of(read_run(folder))
    assert once["rows"][0] == {"callback": "Checkpointer", "hook": "on_checkpoint_save", "calls": 10, "seconds": 2.41}
    file = RunFile.read(folder)
    file.with_session(file.sessions[-1]).write(folder)
    twice = costs_of(read_run(folder))
    assert [row["seconds"] for row in twice["rows"]] == [2 * row["seconds"] for row in once["rows"]]
    assert twice["seconds"] == once["seconds"]


def test_events_stand_in_the_order_of_training(tmp_path: Path) -> None:
    rows = [
        EventRow("start", 0, 0, 0.0),
        EventRow("eval", 20, 1, 5.0, "val/loss 0.5", 1.0),
        EventRow("eval", 10, 1, 2.0),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    found = events_of(read_run(tmp_path))
    assert [(row["name"], row["step"]) for row in found["rows"]] == [("start", 0), ("eval", 10), ("eval", 20)]
    assert list(found["counts"].items()) == [("start", 1), ("eval", 2)]  # by when each came first


def test_ten_thousand_events_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    rows = (EventRow("step_skipped", step, 0, float(step)) for step in range(10_000))
    (tmp_path / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    found = events_of(read_run(tmp_path))
    assert found["counts"] == {"step_skipped": 10_000}
    assert len(found["rows"]) <= 500


def test_a_resumed_run_tells_of_each_session(samples: ModuleType, tmp_path: Path) -> None:
    sessions = sessions_of(read_run(samples.make_run(tmp_path / "run", rows=60, odd=True)))
    assert [session["status"] for session in sessions] == ["preempted", "finished"]
    assert sessions[1]["failures"] == ["ImageSamples.on_eval_end at step 600: ValueError: 3"]


def test_settings_are_flat_and_callbacks_are_in_their_order(samples: ModuleType, tmp_path: Path) -> None:
    found = settings_of(read_run(samples.make_run(tmp_path / "run", rows=60)))
    assert ("model.dropout", 0.1) in found["config"]
    assert found["trainer"][0] == ("seed", 0)
    assert [entry["call"] for entry in found["callbacks"][:2]] == [
        "EarlyStopping(monitor='val/loss', patience=3)",
        "LRMonitor()",
    ]
    assert settings_of(RunData(tmp_path)) == {}


@pytest.mark.parametrize("text", ["EarlyStopping(patience=3)", "patience=3"])
def test_a_callback_is_shown_as_it_would_be_written(text: str) -> None:
    assert call(CallbackEntry("EarlyStopping", text, optional=False)) == "EarlyStopping(patience=3)"


def test_a_callback_made_of_a_function_is_shown_as_it_was_made() -> None:
    made = "hl.on('epoch_end')(show)"
    assert call(CallbackEntry("show", made, optional=False)) == made


@pytest.mark.parametrize("tree", [5, None, "x", [], [1], {"a": {}}, {"a": {"b": [{"c": 1}]}}, {"": {"": 1}}])
def test_any_tree_of_settings_can_be_shown(tree: Any) -> None:
    assert json.dumps(flat(tree))


ODD_FILES = [
    {"config": [1, 2], "settings": 5, "model": None, "versions": "x", "platform": [], "git": "main"},
    {"arguments": "abc", "callbacks": [{"name": 5, "arguments": None, "optional": "maybe"}]},
    {"sessions": [{"started": 5, "seconds": "long", "status": "odd", "last_step": None, "reason": None}]},
    {"sessions": [{"started": "", "costs": [{"callback": 1, "hook": None, "calls": "x", "seconds": []}]}]},
    {"sessions": [{"started": "", "status": {"a": 1}, "failures": [5], "sinks": [None], "stopped_by": []}]},
    {"project": None, "name": ["a"], "seed": {"a": 1}, "started": 7},
]


@pytest.mark.parametrize("odd", ODD_FILES, ids=range(len(ODD_FILES)))
def test_a_run_file_with_something_else_in_it_is_shown_as_far_as_it_goes(
    samples: ModuleType, tmp_path: Path, odd: dict[str, Any]
) -> None:
    folder = samples.make_run(tmp_path / "run", rows=60)
    file = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**file, **odd}))
    assert "train/loss" in render_report(read_run(folder))
    assert "train/loss" in render_compare([read_run(folder), read_run(samples.make_run(tmp_path / "other", rows=60))])


def test_the_seed_among_the_settings_is_the_one_that_was_used() -> None:
    file = RunFile("p", "a", "id", "2030-01-01T00:00:00+00:00", seed=7, settings={"log_every": "1st", "seed": None})
    assert trainer_settings(file) == [("seed", 7), ("log_every", "1st")]
    assert trainer_settings(replace(file, seed=None, settings={"seed": 3})) == [("seed", 3)]


def test_own_steps_do_not_change_how_far_the_run_came(samples: ModuleType, tmp_path: Path) -> None:
    """``run.log(step=…)`` takes any number."""
    for status in ("finished", "running"):
        folder = samples.make_run(tmp_path / status, rows=600, status=status)
        plain = page_data(read_run(folder))
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(to_json(MetricRow("calibration/curve", 136_000, 10, 0.5, "step", 1.0)) + "\n")
            file.write(to_json(MetricRow("low/curve", 1, 10, 0.5, "step", 400.0)) + "\n")
        data = page_data(read_run(folder))
        assert data["facts"]["steps"] == 1_000
        assert data["clocks"] == plain["clocks"]
        assert data["sessions"][-1]["last_step"] == 1_000
        assert Glance(folder, "a").look().step == 1_000


def test_costs_are_shares_of_the_sessions_that_tell_them(samples: ModuleType, tmp_path: Path) -> None:
    """A session that was killed has told nothing; the next one goes on from the seconds of its checkpoint."""
    folder = samples.make_run(tmp_path / "run", rows=60, events=(EventRow("resume", 40, 2, 30.0),))
    file = RunFile.read(folder)
    killed = replace(file.sessions[0], status="killed", last_step=45, seconds=35.0, costs=())
    after = replace(file.sessions[0], first_step=40, seconds=100.0)
    replace(file, sessions=(killed, after)).write(folder)
    assert costs_of(read_run(folder))["seconds"] == pytest.approx(70.0)


def test_the_seed_is_listed_once(samples: ModuleType, tmp_path: Path) -> None:
    found = settings_of(read_run(samples.make_run(tmp_path / "run", rows=60, seed=3, config={"seed": 3})))
    assert [name for name, _ in found["config"] + found["trainer"]].count("seed") == 1
    other = settings_of(read_run(samples.make_run(tmp_path / "other", rows=60, seed=3, config={"seed": 4})))
    assert ("seed", 4) in other["config"]


# -- weights that were put back ----------------------------------------------------------------------


def put_back_run(samples: ModuleType, folder: Path, *events: EventRow) -> RunData:
    return read_run(samples.make_run(folder, rows=60, status="stopped", media=False, events=events))


def test_weights_count_as_put_back_only_if_nothing_was_trained_after_it(samples: ModuleType, tmp_path: Path) -> None:
    last = EventRow("restore", 100, 10, 30.0, restore_text(50, "val/loss 0.1 was the best"))
    found = put_back_of(put_back_run(samples, tmp_path / "a", last))
    assert found == PutBack(50, 30.0, "the weights of step 50 are restored: val/loss 0.1 was the best")
    assert put_back_of(put_back_run(samples, tmp_path / "b", replace(last, step=90))) is None
    went_on = put_back_run(samples, tmp_path / "c", last, EventRow("resume", 100, 10, 30.0))
    assert put_back_of(went_on) is None
    assert put_back_of(put_back_run(samples, tmp_path / "d", replace(last, text="somebody else's words"))) is None
    assert put_back_of(put_back_run(samples, tmp_path / "e")) is None
