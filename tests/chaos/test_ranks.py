"""Trouble on one rank, at every hook, on two and four ranks; and workers that are killed again and again.

All of it with ``HOOKLINE_CHAOS=1``; what is in the suite is in ``tests/distributed``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import RankServer
from tests.distributed.torchrun import Launched

from hookline.events.spec import BY_NAME, SCOPES

pytestmark = pytest.mark.skipif(not os.environ.get("HOOKLINE_CHAOS"), reason="long: make chaos")

FILE = "cases_of_failures.py"
LIMIT = 60.0
HUNG = 75
NOT_SENT = {
    "rollback", "step_skipped", "scheduler_step", "checkpoint_failed", "checkpoint_rejected", "checkpoint_loaded",
    "interrupt", "preempt", "stop", "callback_disabled", "exception", "teardown",
    *(name for name in BY_NAME if name.startswith("predict_")),
}  # fmt: skip
RARE = [
    *("on_scheduler_step", "on_step_skipped", "on_callback_disabled", "on_stop", "on_checkpoint_loaded"),
    *(f"on_{name}" for name in BY_NAME if name.startswith("predict_")),
    *(f"{part}around_{scope}" for scope in (its.name for its in SCOPES) for part in ("", "after ")),
]
"""What comes in a run only where something else happens, and the scopes."""
RAREST = ["on_rollback", "on_preempt", "on_interrupt", "on_checkpoint_failed", "on_checkpoint_rejected"]
"""What is left: two more, of an error and of the very end, are in ``tests/distributed``."""
HOOKS = [f"on_{name}" for name in BY_NAME if name not in NOT_SENT]
BEFORE_STEPS = ("on_setup", "on_model_ready", "on_fit_start", "on_sanity_check_start", "on_sanity_check_end")
ONCE_AT_START = (*BEFORE_STEPS, "on_train_start", "on_train_epoch_start")
AT_END = ("on_train_end", "on_fit_end")
ONE_PER_SCOPE = (
    "on_fit_start",
    "on_train_start",
    "on_epoch_end",
    "on_train_step_end",
    "on_backward_end",
    "on_eval_batch_end",
    "on_checkpoint_save",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"))
    yield server
    server.close()


def options(place: str, folder: Path, **given: Any) -> dict[str, Any]:
    saves = "checkpoint" in place
    return {
        "place": place,
        "at": 0 if place in ONCE_AT_START else 2,
        "saves": saves,
        "folder": str(folder) if saves else None,
        **given,
    }


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("place", HOOKS)
def test_an_error_in_any_hook_ends_all_ranks(ranks: Any, tmp_path: Path, place: str, size: int) -> None:
    who = size - 1
    for its in ranks.run(f"{FILE}:train", size, limit=LIMIT, **options(place, tmp_path, who=who)):
        assert its.code == 1, its.output
        assert its.error == ("Planted" if its.rank == who else "RankError"), its.output
        assert its.rank == who or f"because rank {who} failed in Culprit.{place}" in its.text
        assert its.output.count("teardown") == 1, its.output


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("place", RARE)
def test_an_error_in_a_rare_hook_or_a_scope_ends_all_ranks(ranks: Any, tmp_path: Path, place: str, size: int) -> None:
    who = size - 1
    for its in ranks.run(f"{FILE}:rare", size, limit=LIMIT, place=place, who=who, folder=str(tmp_path)):
        assert its.code == 1, its.output
        assert its.error == ("Planted" if its.rank == who else "RankError"), its.output
        assert its.rank == who or f"because rank {who} failed in Culprit.{place.removeprefix('after ')}" in its.text


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("place", RAREST)
def test_an_error_in_one_of_the_rarest_hooks_ends_all_ranks(ranks: Any, tmp_path: Path, place: str, size: int) -> None:
    who = size - 1
    for its in ranks.run(f"{FILE}:rarest", size, limit=LIMIT, place=place, who=who, folder=str(tmp_path)):
        assert its.code == 1, its.output
        assert its.error == ("Planted" if its.rank == who else "RankError"), its.output
        assert its.rank == who or f"because rank {who} failed in Culprit.{place}" in its.text


@pytest.mark.parametrize("place", RAREST)
def test_a_rank_that_sleeps_in_one_of_the_rarest_hooks_is_found(ranks: Any, tmp_path: Path, place: str) -> None:
    limits = {"hang_after": "2s", "timeout": "4s"}
    given = {"place": place, "action": "sleep", "folder": str(tmp_path), "limits": limits}
    for its in ranks.run(f"{FILE}:rarest", 2, limit=LIMIT, **given):
        assert its.code == (HUNG if its.rank == 1 else 1), its.output
        assert "rank 1 has made no progress for" in (its.output if its.rank == 1 else its.text)


def test_every_hook_is_in_one_of_these_tests_or_beside_them() -> None:
    assert {f"on_{name}" for name in BY_NAME} - {*HOOKS, *RARE, *RAREST} == {"on_exception", "on_teardown"}


@pytest.mark.parametrize("size", [2, 4])
def test_sigterm_in_a_rare_hook_or_a_scope_is_for_all_ranks(ranks: Any, tmp_path: Path, size: int) -> None:
    found = ranks.values(f"{FILE}:rare_preempted", size, places=RARE, folder=str(tmp_path), limit=4 * LIMIT)
    for place, *its in zip(RARE, *found, strict=True):
        assert all(other == its[0] for other in its), place
        assert its[0][1] == 143, place


@pytest.mark.parametrize("size", [2, 4])
def test_a_stop_before_the_first_step_is_for_all_ranks(ranks: Any, size: int) -> None:
    places = list(BEFORE_STEPS)
    found = ranks.values(f"{FILE}:stopped", size, places=places, limit=4 * LIMIT)
    for place, *its in zip(places, *found, strict=True):
        assert all(other == its[0] for other in its), place
        assert (its[0]["step"], its[0]["reason"]) == (0, "enough"), place


@pytest.mark.parametrize("place", RARE)
def test_a_rank_that_sleeps_in_a_rare_hook_or_a_scope_is_found(ranks: Any, tmp_path: Path, place: str) -> None:
    limits = {"hang_after": "2s", "timeout": "4s"}
    given = {"place": place, "action": "sleep", "folder": str(tmp_path), "limits": limits}
    for its in ranks.run(f"{FILE}:rare", 2, limit=LIMIT, **given):
        assert its.code == (HUNG if its.rank == 1 else 1), its.output
        assert "rank 1 has made no progress for" in (its.output if its.rank == 1 else its.text)


@pytest.mark.parametrize(("place", "size"), [(p, 2) for p in HOOKS] + [(p, 4) for p in ONE_PER_SCOPE])
def test_a_rank_that_sleeps_in_any_hook_is_found(ranks: Any, tmp_path: Path, place: str, size: int) -> None:
    limits = {"hang_after": "2s", "timeout": "4s" if place in ONCE_AT_START else "5m"}
    given = options(place, tmp_path, action="sleep", who=1, limits=limits)
    for its in ranks.run(f"{FILE}:train", size, limit=LIMIT, **given):
        assert its.code == (HUNG if its.rank == 1 else 1), its.output
        assert "rank 1 has made no progress for" in (its.output if its.rank == 1 else its.text)


@pytest.mark.parametrize("size", [2, 4])
def test_a_stop_in_any_hook_stops_all_ranks_at_the_same_step(ranks: Any, size: int) -> None:
    places = [place for place in HOOKS if "checkpoint" not in place and place not in (*BEFORE_STEPS, *AT_END)]
    found = ranks.values(f"{FILE}:stopped", size, places=places, limit=4 * LIMIT)
    for place, *its in zip(places, *found, strict=True):
        assert all(other == its[0] for other in its), place
        assert its[0]["reason"] == "enough", place


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_sigterm_in_any_hook_gives_one_checkpoint(ranks: Any, tmp_path: Path, strategy: str, size: int) -> None:
    places = [place for place in HOOKS if place not in AT_END]
    found = ranks.values(
        f"{FILE}:preempted", size, places=places, folder=str(tmp_path), strategy=strategy, limit=4 * LIMIT
    )
    for place, *its in zip(places, *found, strict=True):
        assert all(other == its[0] for other in its), place
        assert its[0]["code"] == 143, place
        kept = sorted(path.name for path in (tmp_path / place / "checkpoints").glob("step-*"))
        assert kept[-1] == its[0]["checkpoint"] == f"step-{its[0]['step']:08d}", place
        assert len(kept) == 1 or "checkpoint" in place, place


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_workers_that_are_killed_five_times_end_with_the_same_weights(
    ranks: Any, tmp_path: Path, strategy: str
) -> None:
    kills = [
        (1, "on_backward_end", 3),
        (0, "save", 4),
        (1, "on_checkpoint_save", 4),
        (0, "eval_batch", 6),
        (1, "on_optimizer_step_end", 9),
    ]
    args = {"folder": str(tmp_path / "run"), "kills": kills, "strategy": strategy}
    launched = Launched("elastic", args, tmp_path / "out.txt", "--standalone", "--max-restarts", "5")
    assert launched.finish(600) == 0, launched.text
    assert launched.text.count("exitcode: -9") == 5, launched.text
    undisturbed = ranks.values(f"{FILE}:train", 2, strategy=strategy)
    assert [its["weights"] for its in launched.results()] == [its["weights"] for its in undisturbed]


def test_a_rank_that_hangs_is_started_again(ranks: Any, tmp_path: Path) -> None:
    args = {
        "folder": str(tmp_path / "run"),
        "kills": [(1, "on_train_step_end", 5)],
        "action": "sleep",
        "limits": {"hang_after": "3s", "timeout": "5m"},
    }
    launched = Launched("elastic", args, tmp_path / "out.txt", "--standalone", "--max-restarts", "1")
    assert launched.finish(300) == 0, launched.text
    assert "rank 1 has made no progress for 3 s" in launched.text
    undisturbed = ranks.values(f"{FILE}:train", 2)
    assert [its["weights"] for its in launched.results()] == [its["weights"] for its in undisturbed]
