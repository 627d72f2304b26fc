"""Votes of a few ranks on one machine go directly from rank to rank: the same sums everywhere, and never a hang."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

CASES = "cases_of_links.py"
LIMIT = 200.0


def expected(ranks: int, rounds: int) -> list[list[float]]:
    """What ``sums`` adds up, exactly."""
    found = []
    for number in range(rounds):
        rows = []
        for rank in range(ranks):
            numbers = random.Random(1000 * number + rank)
            rows.append([numbers.uniform(-1, 1) * 10 ** numbers.randrange(-9, 9) for _ in range(1 + number)])
        found.append([math.fsum(column) for column in zip(*rows, strict=True)])
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_get_the_same_sums_to_the_last_bit(ranks: Any, size: int) -> None:
    found = ranks.values(f"{CASES}:sums", size, rounds=40)
    assert all(its["direct"] for its in found)
    assert all(its["sums"] == found[0]["sums"] for its in found)
    for row, exact in zip(found[0]["sums"], expected(size, 40), strict=True):
        assert row == pytest.approx(exact, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("case", ["on_two_machines", "without_loopback", "held_up"])
def test_ranks_that_cannot_be_connected_vote_over_gloo(ranks: Any, case: str) -> None:
    found = ranks.values(f"{CASES}:{case}", 2)
    assert not any(its["direct"] for its in found)
    for row, exact in zip(found[0]["sums"], expected(2, 3), strict=True):
        assert row == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_strangers_at_the_port_are_turned_away(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:with_strangers", 3)
    assert all(its["direct"] for its in found)
    assert found[0]["sums"] == found[1]["sums"] == found[2]["sums"]


@pytest.mark.parametrize(
    ("how", "words"),
    [("dies", "another rank has ended without an error"), ("fails", "because rank 1 failed with a reason")],
)
def test_who_waits_for_a_rank_that_has_ended_is_told(ranks: Any, how: str, words: str) -> None:
    zero, one = ranks.run(f"{CASES}:one_ends", 2, how=how, limit=LIMIT)
    assert zero.error == "RankError", zero.output
    assert words in zero.text
    assert one.code != 0


def test_ranks_at_different_votes_are_an_error_that_says_so(ranks: Any) -> None:
    for told in ranks.run(f"{CASES}:one_is_elsewhere", 2, by="length", limit=LIMIT):
        assert told.error == "RankError", told.output
        assert "not at the same place" in told.text


def test_votes_of_another_number_are_not_added_up(ranks: Any) -> None:
    """Rank zero is at its fifth vote; what it says is not that of the others' second."""
    one = ranks.run(f"{CASES}:one_is_elsewhere", 2, by="number", limit=LIMIT)[1]
    assert one.error == "RankError", one.output
    assert "holds vote 2, and rank 0 vote 5" in one.text


def test_two_votes_may_be_under_way_at_once(ranks: Any) -> None:
    expected = [[20.0], [200.0, 2.0, 1.0], [2.0, 1.0]]
    assert ranks.values(f"{CASES}:one_inside_another", 2) == [expected, expected]


@pytest.mark.parametrize("how", ["evaluated", "predicted"])
def test_an_own_loop_may_evaluate_and_predict_before_its_step(either_ranks: Any, how: str) -> None:
    alone = either_ranks.values(f"{CASES}:evaluated_before_the_step", 1, how=how)[0]
    zero, one = found = either_ranks.values(f"{CASES}:evaluated_before_the_step", 2, how=how)
    for its in found:
        assert its["step"] == 4
        assert its["weights"] == pytest.approx(alone["weights"], abs=1e-6)
        assert its["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    in_turn = [value for pair in zip(zero["predicted"], one["predicted"], strict=True) for value in pair]
    assert in_turn == pytest.approx(alone["predicted"], abs=1e-5)


def test_a_vote_that_an_edge_has_overtaken_is_not_kept(ranks: Any) -> None:
    """It would be one more in memory with each step."""
    assert [its["kept"] for its in ranks.values(f"{CASES}:evaluated_before_the_step", 2, how="evaluated")] == [0, 0]


def test_what_a_signal_handler_raises_in_a_wait_is_the_users_own(ranks: Any) -> None:
    kinds = ["TimeoutError", "ConnectionError", "RuntimeError"]
    for of, its in [(of, ranks.start(f"{CASES}:left_by_a_handler", 2, of=of)) for of in kinds]:
        zero, one = its.finish(LIMIT)
        assert (zero.error, zero.text.strip()) == (of, "my own limit"), zero.output
        assert one.error == "RankError"
        assert "because rank 0 failed with my own limit" in one.text


def test_connections_are_closed_where_the_ranks_cannot_agree_on_them(ranks: Any) -> None:
    assert ranks.values(f"{CASES}:agreement_fails", 2) == [0, 0]


def test_a_vote_in_a_hook_of_rank_zero_alone_is_refused(ranks: Any) -> None:
    for words in ranks.values(f"{CASES}:in_a_hook_of_rank_zero", 2):
        assert "Zero.on_train_step_end runs on ranks='zero' only, and a vote needs all ranks" in words


def test_nine_ranks_are_too_many(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:sums", 9, rounds=2)
    assert not any(its["direct"] for its in found)
    assert all(its["sums"] == found[0]["sums"] for its in found)


def test_a_script_that_ends_with_its_pipe_hears_of_a_rank_that_has_failed(ranks: Any) -> None:
    zero = ranks.run(f"{CASES}:gone_while_signals_end_the_process", 2, limit=LIMIT)[0]
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "because rank 1 failed with a reason" in zero.text


@pytest.mark.parametrize("case", ["one_is_late", "woken_by_a_thread"])
def test_a_wait_ends_at_its_time_out_and_when_it_is_cut(ranks: Any, case: str) -> None:
    started = ranks.start(f"{CASES}:{case}", 2)
    try:
        started.wait_for("result-0.json", LIMIT)
    finally:
        started.kill()
    assert started.finish()[0].error == "RankError"


def test_a_run_leaves_no_connection_open(ranks: Any) -> None:
    assert ranks.values(f"{CASES}:closed", 2) == [0, 0]
