"""A rank that makes no progress is found and named, with its stack, and ends; nobody waits for the time-out."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

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


def test_a_rank_that_sleeps_is_found_and_named_on_every_rank(ranks: Any) -> None:
    """The runs sleep at the same time. Rank zero, which sleeps in the last one, keeps the store."""
    cases: list[tuple[int, dict[str, Any]]] = [
        (2, {"place": "on_train_step_end"}),
        (2, {"place": "data"}),
        (2, {"place": "body", "own_loop": True}),
        (2, {"place": "eval_batch", "strategy": "fsdp"}),
        (3, {"place": "on_train_step_end", "who": 0}),
    ]
    started = [ranks.start(CASE, size, action="sleep", limits=SHORT, **options) for size, options in cases]
    for its, (_, options) in zip(started, cases, strict=True):
        check_culprit_is_named(its.finish(LIMIT), "Trouble.act (cases_of_failures.py:", who=options.get("who", 1))


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


def test_a_rank_that_sleeps_in_an_evaluation_without_a_fit_is_found_after_its_first_batch(ranks: Any) -> None:
    started = [ranks.start("cases_of_lost_ranks.py:hangs_in", 2, entry=entry) for entry in ("evaluate", "predict")]
    for its in started:
        zero, one = its.finish(LIMIT)
        assert one.code == HUNG, one.output
        assert (zero.code, zero.error) == (1, "RankError"), zero.output
        assert "because rank 1 has made no progress for 4 s" in zero.text
        assert "sleep (cases_of_lost_ranks.py:" in zero.text


def test_the_watchdog_which_names_the_culprit_speaks_before_the_time_out_of_a_collective(ranks: Any) -> None:
    zero, one = ranks.run("cases_of_lost_ranks.py:hangs_while_watchdog_is_late", 2, limit=LIMIT)
    assert one.code == HUNG, one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "because rank 1 has made no progress for 4 s" in zero.text


def test_a_rank_that_sleeps_in_what_follows_an_error_is_ended(ranks: Any) -> None:
    case = "cases_of_lost_ranks.py:hangs_after_an_error"
    for its in [ranks.start(case, 2, hook=hook) for hook in ("on_exception", "on_teardown")]:
        zero, one = its.finish(LIMIT)
        assert (zero.code, zero.error) == (1, "ValueError"), zero.output
        assert one.code == HUNG, one.output
        assert "rank 1 has not ended 4 s after an error (the limit is timeout=): it is in " in one.output
        assert "sleep (cases_of_lost_ranks.py:" in one.output


def test_a_rank_that_was_stopped_for_longer_than_the_limit_and_works_again_is_not_ended(
    ranks: Any, tmp_path: Path
) -> None:
    """By SIGSTOP, as a scheduler or a debugger does: the time in which it could not work does not count."""
    case, started = "cases_of_lost_ranks.py:is_stopped_for_longer_than_the_limit", {}
    for hook in ("on_train_step_start", "on_teardown"):
        (tmp_path / hook).mkdir()
        started[hook] = ranks.start(case, 2, hook=hook, folder=str(tmp_path / hook))
    for hook, its in started.items():
        its.wait_for(tmp_path / hook / "here")
        its.send(signal.SIGSTOP, rank=1)
    time.sleep(6.0)  # the limit is 4 s, and the test is about the time that passes
    for hook, its in started.items():
        (tmp_path / hook / "sent").touch()
        its.send(signal.SIGCONT, rank=1)
    for hook, code, zeros in (("on_train_step_start", 0, (0, "")), ("on_teardown", 1, (1, "ValueError"))):
        zero, one = started[hook].finish(LIMIT)
        assert one.code == code, one.output
        assert "has made no progress" not in one.output
        assert "has not ended" not in one.output
        assert (zero.code, zero.error) == zeros, zero.output
