"""Trouble on one of two ranks, once in each scope of a run: all end together, at the same step where there is one.

All hooks and scopes, on two and four ranks, are tried in ``tests/chaos/test_ranks.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.places import BEFORE_STEPS, ONE_PER_SCOPE, PREDICTS, SAVES

CASES = "cases_of_places.py"
HUNG = 75
WHERE = list(ONE_PER_SCOPE.values())


def ends(ranks: Any, trouble: str, folder: Path, **options: Any) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """In each scope, one run after another in the same two processes: how both ranks have ended."""
    zero, one = ranks.values(f"{CASES}:each", 2, places=WHERE, action=trouble, folder=str(folder), **options)
    for place in WHERE:
        assert one[place]["came"], f"{place} has not come"
    return [(place, zero[place], one[place]) for place in WHERE]


def test_a_stop_in_any_scope_of_one_rank_stops_all_at_the_same_step(ranks: Any, tmp_path: Path) -> None:
    for place, zero, one in ends(ranks, "stop", tmp_path):
        assert zero == one, place
        if place not in PREDICTS:  # where there is nothing to stop
            assert (zero["reason"], zero["epoch"] < 2) == ("enough", True), place


def test_sigterm_in_any_scope_of_one_rank_gives_one_checkpoint_and_one_code(ranks: Any, tmp_path: Path) -> None:
    for place, zero, one in ends(ranks, "SIGTERM", tmp_path, saves=True):
        assert zero == one, place
        assert zero["code"] == 143, place
        if place not in PREDICTS:
            kept = [path.name for path in (tmp_path / place / "checkpoints").glob("step-*")]
            assert zero["checkpoint"] == f"step-{zero['step']:08d}", place
            assert zero["checkpoint"] in kept, place
            assert len(kept) == 1 or place in SAVES, place


def test_a_custom_loop_that_one_rank_leaves_after_any_scope_ends_on_all_with_an_error(
    ranks: Any, tmp_path: Path
) -> None:
    for some in (WHERE[::2], WHERE[1::2]):
        args = {"action": "break", "shape": "own loop"}
        started = [ranks.start(f"{CASES}:at", 2, place=place, folder=str(tmp_path / place), **args) for place in some]
        for place, its in zip(some, started, strict=True):
            for told in its.finish():
                assert (told.code, told.error) == (1, "RankError"), f"{place}\n{told.output}"
                assert "rank 1 left the body of its loop" in told.text, place


def test_ranks_end_together_where_the_data_of_one_ends_after_any_scope(ranks: Any, tmp_path: Path) -> None:
    for place, zero, one in ends(ranks, "out of data", tmp_path, shape="shard"):
        read, shorter = zero.pop("read"), one.pop("read")
        assert zero == one, place
        assert shorter[1] < read[1], place  # in evaluations, or the prediction
        assert shorter[0] < read[0] or place in PREDICTS, place  # in training


def test_a_rank_that_sleeps_in_any_scope_is_found(ranks: Any, tmp_path: Path) -> None:
    """Some beside one another: most of the time they sleep."""
    for some in (WHERE[::2], WHERE[1::2]):
        started = {}
        for place in some:
            limits = {"hang_after": "8s", "timeout": "8s" if place in BEFORE_STEPS | PREDICTS else "5m"}
            given = {"place": place, "action": "sleep", "folder": str(tmp_path / place), "limits": limits}
            started[place] = ranks.start(f"{CASES}:at", 2, **given)
        for place, its in started.items():
            zero, one = its.finish()
            assert one.code == HUNG, f"{place}\n{one.output}"
            assert (zero.code, zero.error) == (1, "RankError"), f"{place}\n{zero.output}"
            assert "because rank 1 has made no progress for 8 s" in zero.text, place
            assert "Trouble.act" in zero.text, place


@pytest.mark.parametrize("place", [ONE_PER_SCOPE["predict"], ONE_PER_SCOPE["train"], "after around_predict"])
def test_an_error_in_a_scope_of_one_rank_is_known_to_the_other(ranks: Any, place: str) -> None:
    """The others are in ``test_failures.py``."""
    zero, one = ranks.run(f"{CASES}:at", 2, place=place, folder=None)
    assert (one.code, one.error) == (1, "Planted"), one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert f"because rank 1 failed in Culprit.{place.removeprefix('after ')}" in zero.text
    assert zero.output.count("teardown") == one.output.count("teardown") == 1


def test_an_error_in_what_follows_an_error_hides_it_on_no_rank(ranks: Any) -> None:
    zero, one = ranks.run(f"{CASES}:at", 2, place="on_exception", folder=None)
    assert (zero.code, zero.error) == (1, "ValueError"), zero.output
    assert (one.code, one.error) == (1, "RankError"), one.output
    assert "first" in one.text
    assert "no luck" in one.text
