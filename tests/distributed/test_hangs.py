"""A rank that makes no progress is found and named, with its stack, and ends; nobody waits for the time-out."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

CASE = "cases_of_failures.py:train"
HUNG = 75
LIMIT = 200.0
SHORT = {"hang_after": "4s", "timeout": "5m"}
"""Longer than a rank at work is silent for on a busy machine."""


def check_culprit_is_named(told: list[Any], where: str, who: int = 1) -> None:
    """The one that hangs ends with the code for it, after its stack; the others with an error that names the place."""
    for its in told:
        if its.rank == who:
            assert its.code == HUNG, its.output
            assert f"rank {who} has made no progress for 4 s" in its.output
            assert where in its.output
            assert "most recent call first" in its.output
            assert "in act" in its.output
        else:
            assert (its.code, its.error) == (1, "RankError"), its.output
            assert f"because rank {who} has made no progress for 4 s" in its.text
            assert where in its.text
            assert "teardown" in its.output


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("on_train_step_end", {}),
        ("data", {}),
        ("body", {"own_loop": True}),
        ("eval_batch", {"strategy": "fsdp"}),
    ],
)
def test_a_rank_that_sleeps_is_found_and_named_on_every_rank(ranks: Any, place: str, options: dict[str, Any]) -> None:
    told = ranks.run(CASE, 2, place=place, action="sleep", limits=SHORT, limit=LIMIT, **options)
    check_culprit_is_named(told, "Trouble.act (cases_of_failures.py:")


def test_rank_zero_which_keeps_the_store_is_found_too(ranks: Any) -> None:
    told = ranks.run(CASE, 3, place="on_train_step_end", action="sleep", who=0, limits=SHORT, limit=LIMIT)
    check_culprit_is_named(told, "Trouble.act (cases_of_failures.py:", who=0)


def test_before_the_first_step_the_longer_limit_holds(ranks: Any) -> None:
    limits = {"hang_after": "5m", "timeout": "4s"}
    told = ranks.run(CASE, 2, place="on_fit_start", action="sleep", at=0, limits=limits, limit=LIMIT)
    check_culprit_is_named(told, "Trouble.act (cases_of_failures.py:")


def test_a_worker_of_the_data_that_hangs_is_found(ranks: Any) -> None:
    told = ranks.run(
        "cases_of_failures.py:train",
        2,
        place="data",
        action="sleep",
        at=0,
        workers=1,
        limits={"hang_after": "2s", "timeout": "5s"},
        limit=LIMIT,
    )
    assert told[1].code == HUNG, told[1].output
    assert "rank 1 has made no progress for 5 s" in told[1].output
    assert (told[0].code, told[0].error) == (1, "RankError"), told[0].output


def test_a_rank_may_be_at_work_for_longer_than_the_limit_while_the_others_wait(ranks: Any) -> None:
    """Its evaluation has many batches: each is progress, and those that wait are not taken for hung."""
    found = ranks.values("cases_of_failures.py:uneven_evaluation", 2, limit=LIMIT)
    assert [its["step"] for its in found] == [2, 2]


def test_ranks_that_all_wait_for_one_another_do_not_wait_for_ever(ranks: Any) -> None:
    told = ranks.run("cases_of_failures.py:deadlock", 2, limit=LIMIT)
    assert [its.code for its in told] == [HUNG, HUNG], "\n".join(its.output for its in told)
    for its in told:
        assert "all ranks wait for one another" in its.output
        assert "rank 0 in" in its.output
        assert "rank 1 in" in its.output


@pytest.mark.parametrize("entry", ["evaluate", "predict"])
def test_a_rank_that_sleeps_in_an_evaluation_without_a_fit_is_found_after_its_first_batch(
    ranks: Any, entry: str
) -> None:
    zero, one = ranks.run("cases_of_lost_ranks.py:hangs_in", 2, entry=entry, limit=LIMIT)
    assert one.code == HUNG, one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "because rank 1 has made no progress for 4 s" in zero.text
    assert "sleep (cases_of_lost_ranks.py:" in zero.text


def test_the_watchdog_which_names_the_culprit_speaks_before_the_time_out_of_a_collective(ranks: Any) -> None:
    zero, one = ranks.run("cases_of_lost_ranks.py:hangs_while_watchdog_is_late", 2, limit=LIMIT)
    assert one.code == HUNG, one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "because rank 1 has made no progress for 4 s" in zero.text


@pytest.mark.parametrize("hook", ["on_exception", "on_teardown"])
def test_a_rank_that_sleeps_in_what_follows_an_error_is_ended(ranks: Any, hook: str) -> None:
    zero, one = ranks.run("cases_of_lost_ranks.py:hangs_after_an_error", 2, hook=hook, limit=LIMIT)
    assert (zero.code, zero.error) == (1, "ValueError"), zero.output
    assert one.code == HUNG, one.output
    assert "rank 1 has not ended 4 s after an error (the limit is timeout=): it is in " in one.output
    assert "sleep (cases_of_lost_ranks.py:" in one.output


@pytest.mark.parametrize(("hook", "code"), [("on_train_step_start", 0), ("on_teardown", 1)])
def test_a_rank_that_was_stopped_for_longer_than_the_limit_and_works_again_is_not_ended(
    ranks: Any, tmp_path: Path, hook: str, code: int
) -> None:
    """By SIGSTOP, as a scheduler or a debugger does: the time in which it could not work does not count."""
    started = ranks.start(
        "cases_of_lost_ranks.py:is_stopped_for_longer_than_the_limit", 2, hook=hook, folder=str(tmp_path)
    )
    started.wait_for(tmp_path / "here")
    started.send(signal.SIGSTOP, rank=1)
    time.sleep(6.0)  # the limit is 4 s, and the test is about the time that passes
    (tmp_path / "sent").touch()
    started.send(signal.SIGCONT, rank=1)
    zero, one = started.finish(LIMIT)
    assert one.code == code, one.output
    assert "has made no progress" not in one.output
    assert "has not ended" not in one.output
    assert (zero.code, zero.error) == ((0, "") if code == 0 else (1, "ValueError")), zero.output
