"""The body of a custom loop is left: by one rank it is an error on all ranks, by all in the same batch it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASE = "cases_of_exits.py:train"
BATCH = ["before forward", "before backward", "before step", "after step", "StopTraining"]
OPENED = [
    f"{part}: {where}"
    for part in ("evaluation", "prediction")
    for where in ("before forward", "after forward", "StopTraining", "return")
]
INSIDE_A_STEP = ["evaluation inside a step: after forward", "prediction inside a step: after forward"]
PLACES = [*BATCH, *OPENED, *INSIDE_A_STEP]
VARIANTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ddp": ({}, PLACES),
    "fsdp": ({"strategy": "fsdp"}, PLACES),
    "first batch": ({"strategy": "fsdp", "at": 0}, BATCH),
    "interval ends": ({"log_every": "5st"}, ["after step", "StopTraining"]),
    "last step": ({"at": 7}, BATCH),
    "accumulation": ({"accumulate": 3}, BATCH),
    "last of a window": ({"accumulate": 3, "at": 5}, BATCH),
    "two optimizers": ({"optimizers": 2}, ["between optimizers", *BATCH]),
    "two optimizers, fsdp": ({"optimizers": 2, "strategy": "fsdp"}, ["between optimizers", *BATCH]),
}
"""Options of the loop, and the places at which it is left."""
AT_ONCE = 5
"""Runs at the same time: most of the time they wait."""


def each(ranks: Any, by: list[int], variant: str) -> list[tuple[str, list[Any]]]:
    """How both ranks have ended, for each place."""
    options, places = VARIANTS[variant]
    found = []
    for some in (places[first : first + AT_ONCE] for first in range(0, len(places), AT_ONCE)):
        started = [ranks.start(CASE, 2, place=place, by=by, **options) for place in some]
        found += [(place, its.finish()) for place, its in zip(some, started, strict=True)]
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_body_that_one_rank_leaves_ends_all_ranks_with_an_error(ranks: Any, variant: str) -> None:
    for place, (zero, one) in each(ranks, [1], variant):
        assert (zero.code, zero.error) == (one.code, one.error) == (1, "RankError"), place + zero.output + one.output
        words = "rank 1 left the body of its loop at step "
        assert one.text.startswith(words), place
        assert zero.text.startswith(f"rank 0 ends, because {words}"), place
        for its in (zero, one):
            assert "and rank 0 continues: leave it in the same batch on all ranks, or call run.stop()" in its.text


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_body_that_all_ranks_leave_in_the_same_batch_ends_at_once(either_ranks: Any, variant: str) -> None:
    options, _ = VARIANTS[variant]
    accumulate = options.get("accumulate", 1)
    for place, told in each(either_ranks, [0, 1], variant):
        assert [its.code for its in told] == [0, 0], place + told[0].output + told[1].output
        zero, one = (its.value for its in told)
        assert zero == one, place
        part, _, where = place.partition(": ")
        step = (options.get("at", 4) + (place in ("after step", "StopTraining") or bool(where))) // accumulate
        reason = "enough" if "StopTraining" in place else "break"
        if where in ("before forward", "after forward"):  # the training continues
            step, reason = 8, "max_duration (8st) reached"
        assert zero["ended"] == [step, 16 * accumulate * step, reason], place
        if where:
            check_end_of_part(zero, part, where)


def check_end_of_part(found: dict[str, Any], part: str, where: str) -> None:
    """An evaluation that was left by ``break`` has an end, and counts; one that StopTraining has left does not."""
    evaluates = part.startswith("evaluation")
    made = 4 if part.endswith("inside a step") else 5
    is_stopped = where == "StopTraining" and evaluates
    kind = "eval_end" if evaluates else "predict_end"
    assert found["ends"] == [*([] if is_stopped else [f"{kind} {made}"]), f"train_end {found['ended'][0]}"]
    batches = 6.0 if where == "after forward" else 4.0  # of the first loader, on both ranks
    assert found["count"] == ([batches] if evaluates and not is_stopped else [])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_may_leave_the_body_of_their_loop_late(ranks: Any, size: int) -> None:
    found = ranks.values(CASE, size, place="before forward", by=list(range(size)), late=6.0)
    assert all(its == found[0] for its in found)
    assert found[0]["ended"] == [4, 32 * size, "break"]


def test_ranks_that_leave_the_same_batch_before_and_after_its_step_end_with_an_error(ranks: Any) -> None:
    told = ranks.run("cases_of_exits.py:before_and_after_the_step", 2)
    assert [its.error for its in told] == ["RankError", "RankError"], told[0].output + told[1].output
    assert any("left the body of its loop at step" in its.text for its in told)


@pytest.mark.parametrize("how", ["stop", "ctrl-c", "StopTraining"])
def test_ranks_that_leave_together_agree_on_one_stop(ranks: Any, how: str, tmp_path: Path) -> None:
    """One rank had asked for another stop since the last vote: the ranks ended in different ways, and hung."""
    first, second = ranks.values("cases_of_exits.py:stop_and_break", 2, how=how, folder=str(tmp_path), limit=100)
    assert first == second
    assert first[0] == 97


@pytest.mark.parametrize(("how", "batches"), [("skip", 123), ("weight", 120)])
def test_a_body_skips_steps_and_gives_weights_whenever_it_likes(ranks: Any, how: str, batches: int) -> None:
    assert ranks.values("cases_of_exits.py:late_requests", 2, how=how) == [[batches, 120]] * 2


def test_a_step_is_skipped_although_the_body_has_stepped_an_optimizer(ranks: Any) -> None:
    assert ranks.values("cases_of_exits.py:skip_after_own_step", 2) == [[6, {"a": 7, "b": 6}]] * 2
