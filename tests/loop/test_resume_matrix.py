"""A run that was left anywhere and resumed with new objects is the run that never stopped, bit for bit."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hookline as hl
from hookline.checkpoint import Store


def _neighbour(name: str) -> ModuleType:
    """A module beside this one: tests are imported by their path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle looks its classes up there
    spec.loader.exec_module(module)
    return module


cases = _neighbour("resume_cases")
CASES = {cases.name_of(case): case for case in cases.choose()}


def test_every_pair_of_two_axes_is_in_one_of_the_cases() -> None:
    assert len(CASES) == cases.COUNT
    covered = {pair for case in CASES.values() for pair in combinations(case.items(), 2)}
    missing = [
        (one, first, other, second)
        for one, other in combinations(cases.AXES, 2)
        for first in cases.AXES[one]
        for second in cases.AXES[other]
        if ((one, first), (other, second)) not in covered
    ]
    assert missing == [("where", "window", "accumulate", 1)]  # there is no such thing


@pytest.mark.parametrize("name", CASES, ids=CASES)
def test_a_run_that_was_left_and_resumed_is_the_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = cases.run_case(case, tmp_path / "whole", save_every="9ep")
    assert whole.error is None
    how, folder = case["how"], tmp_path / "left"
    ended = how == "path" and case["where"] in ("last step", "early stop")
    leave = None if ended else cases.leave_of(case, "raise" if how == "raise" else "SIGTERM")
    left = cases.run_case(case, folder, leave=leave)
    assert (left.error is None) == ended, "it was not left"
    resume: Any = "auto"
    if how == "path":
        latest = Store(folder / "checkpoints").latest()
        assert latest is not None
        folder, resume = tmp_path / "elsewhere", latest.path
    resumed = cases.run_case(case, folder, resume=resume, seed=99)
    assert resumed.error is None
    assert cases.differences(whole, resumed, finished=ended) == []


EVERYTHING: dict[str, Any] = {
    "where": "mid-epoch",
    "workers": (0, 2),
    "scheduler": "step",
    "how": "raise",
    "precision": "fp32",
    "order": "shuffle",
    "way": "Trainer",
    "optimizer": "AdamW",
    "accumulate": 1,
    "ema": True,
    "dropout": True,
    "augment": True,
    "eval_every": "1ep",
    "save_every": "3st",
}


def leave_at(step: int, how: str) -> hl.Callback:
    return cases.Leave("train_step_start", lambda run: run.clock.step == step, how)


@pytest.mark.parametrize("way", ["Trainer", "Loop"])
def test_resumed_of_resumed_of_resumed_is_still_the_one_that_never_stopped(way: str, tmp_path: Path) -> None:
    case = {**EVERYTHING, "way": way}
    whole = cases.run_case(case, tmp_path / "whole", save_every="9ep")
    folder, resumed_at = tmp_path / "left", []
    plan = [(0, leave_at(5, "SIGTERM")), (2, leave_at(13, "raise")), (3, leave_at(21, "SIGTERM"))]
    for seed, (workers, leave) in enumerate(plan):
        left = cases.run_case(
            case, folder, leave=leave, resume="auto" if seed else None, workers=workers, seed=5 + seed
        )
        assert left.error is not None
        resumed_at.append(left.witness.resumed_at)
    last = cases.run_case(case, folder, resume="auto", workers=0, seed=50)
    resumed_at.append(last.witness.resumed_at)
    assert resumed_at == [None, 6, 12, 22]  # a signal finishes the step; an error goes back to the last save
    assert cases.differences(whole, last) == []
    assert {checkpoint.about.generation for checkpoint in Store(folder / "checkpoints").checkpoints()} == {0}
    assert len({checkpoint.about.run for checkpoint in Store(folder / "checkpoints").checkpoints()}) == 1


def test_a_resume_from_an_older_checkpoint_begins_a_new_generation_which_is_the_latest(tmp_path: Path) -> None:
    whole = cases.run_case(EVERYTHING, tmp_path / "run")
    store = Store(tmp_path / "run" / "checkpoints")
    before = {checkpoint.path for checkpoint in store.checkpoints()}
    older = next(checkpoint for checkpoint in store.checkpoints() if checkpoint.about.step == 12)
    left = cases.run_case(EVERYTHING, tmp_path / "run", leave=leave_at(20, "raise"), resume=older.path, seed=6)
    assert left.error is not None
    assert left.witness.resumed_at == 12
    latest = store.latest()
    assert latest is not None
    assert (latest.about.generation, latest.about.step) == (1, 18)  # not the one of step 30, which is finished
    assert before <= {checkpoint.path for checkpoint in store.checkpoints()}  # nothing was written over
    again = cases.run_case(EVERYTHING, tmp_path / "run", resume="auto", seed=7)
    assert again.witness.resumed_at == 18
    assert cases.differences(whole, again) == []
    latest = store.latest()
    assert latest is not None
    assert (latest.about.generation, latest.about.step, latest.about.finished) == (1, 30, True)
    ended = cases.run_case(EVERYTHING, tmp_path / "run", resume="auto", seed=8)
    assert ended.seen == []  # it is finished now
    third = cases.run_case(EVERYTHING, tmp_path / "run", resume=older.path, seed=9)
    assert cases.differences(whole, third) == []
    assert max(checkpoint.about.generation for checkpoint in store.checkpoints()) == 2


def test_a_resume_by_path_into_another_folder_leaves_the_first_one_as_it_is(tmp_path: Path) -> None:
    whole = cases.run_case(EVERYTHING, tmp_path / "run")
    store = Store(tmp_path / "run" / "checkpoints")
    older = next(checkpoint for checkpoint in store.checkpoints() if checkpoint.about.step == 12)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = cases.run_case(EVERYTHING, tmp_path / "other", resume=older.path, seed=6)
    assert cases.differences(whole, other) == []
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    made = Store(tmp_path / "other" / "checkpoints").checkpoints()
    assert {checkpoint.about.generation for checkpoint in made} == {0}
    assert min(checkpoint.about.step for checkpoint in made) > 12
    assert {checkpoint.about.run for checkpoint in made}.isdisjoint({older.about.run})
