"""A run that was left anywhere and resumed with new objects is the run that never stopped, bit for bit."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.checkpoint import Store
from tests.loop import resume_cases as cases

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
    whole = cases.run_case(case, tmp_path / "whole", save_every="9ep", workers=0)
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


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that never stopped. Its checkpoints are those of every third step; its folder must stay as it is."""
    return cases.run_case(EVERYTHING, tmp_path_factory.mktemp("everything") / "run")


@pytest.mark.parametrize("way", ["Trainer", "Loop"])
def test_resumed_of_resumed_of_resumed_is_still_the_one_that_never_stopped(
    way: str, everything: Any, tmp_path: Path
) -> None:
    case = {**EVERYTHING, "way": way}
    whole = everything if way == "Trainer" else cases.run_case(case, tmp_path / "whole", save_every="9ep")
    folder, resumed_at = tmp_path / "left", []
    plan = [(0, leave_at(3, "SIGTERM")), (2, leave_at(10, "raise")), (3, leave_at(13, "SIGTERM"))]
    for seed, (workers, leave) in enumerate(plan):
        left = cases.run_case(
            case, folder, leave=leave, resume="auto" if seed else None, workers=workers, seed=5 + seed
        )
        assert left.error is not None
        resumed_at.append(left.witness.resumed_at)
    last = cases.run_case(case, folder, resume="auto", workers=0, seed=50)
    resumed_at.append(last.witness.resumed_at)
    assert resumed_at == [None, 4, 9, 14]  # a signal finishes the step; an error goes back to the last save
    assert cases.differences(whole, last) == []
    saved = [checkpoint.about for checkpoint in Store(folder / "checkpoints").checkpoints()]
    assert {about.generation for about in saved} == {0}
    assert len({about.run for about in saved}) == 1


def test_a_resume_from_an_older_checkpoint_begins_a_new_generation_which_is_the_latest(
    everything: Any, tmp_path: Path
) -> None:
    shutil.copytree(everything.folder, tmp_path / "run")
    store = Store(tmp_path / "run" / "checkpoints")
    before = {checkpoint.path for checkpoint in store.checkpoints()}
    older = next(checkpoint for checkpoint in store.checkpoints() if checkpoint.about.step == 9)
    left = cases.run_case(EVERYTHING, tmp_path / "run", leave=leave_at(17, "raise"), resume=older.path, seed=6)
    assert left.error is not None
    assert left.witness.resumed_at == 9
    latest = store.latest()
    assert latest is not None
    assert (latest.about.generation, latest.about.step) == (1, 15)  # not the one of step 18, which is finished
    assert before <= {checkpoint.path for checkpoint in store.checkpoints()}  # nothing was written over
    again = cases.run_case(EVERYTHING, tmp_path / "run", resume="auto", seed=7)
    assert again.witness.resumed_at == 15
    assert cases.differences(everything, again) == []
    latest = store.latest()
    assert latest is not None
    assert (latest.about.generation, latest.about.step, latest.about.finished) == (1, 18, True)
    ended = cases.run_case(EVERYTHING, tmp_path / "run", resume="auto", seed=8)
    assert ended.seen == []  # it is finished now
    third = cases.run_case(EVERYTHING, tmp_path / "run", resume=older.path, workers=0, seed=9)
    assert cases.differences(everything, third) == []
    assert max(checkpoint.about.generation for checkpoint in store.checkpoints()) == 2


def test_a_resume_by_path_into_another_folder_leaves_the_first_one_as_it_is(everything: Any, tmp_path: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in everything.folder.rglob("*") if path.is_file()}

    store, before = Store(everything.folder / "checkpoints"), files()
    older = next(checkpoint for checkpoint in store.checkpoints() if checkpoint.about.step == 9)
    other = cases.run_case(EVERYTHING, tmp_path / "other", resume=older.path, workers=0, seed=6)
    assert cases.differences(everything, other) == []
    assert before == files()
    made = [checkpoint.about for checkpoint in Store(tmp_path / "other" / "checkpoints").checkpoints()]
    assert {about.generation for about in made} == {0}
    assert min(about.step for about in made) > 9
    assert {about.run for about in made}.isdisjoint({older.about.run})
