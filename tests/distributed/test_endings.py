"""How a run of several ranks ends: with the right one's words, at one step, and whatever takes how long."""

from __future__ import annotations

from typing import Any

import pytest

FILE = "cases_of_endings.py"
LIMIT = 200.0


@pytest.mark.parametrize("where", ["task", "data", "worker"])
def test_an_error_of_the_users_that_speaks_of_a_connection_is_no_lost_rank(ranks: Any, where: str) -> None:
    zero, one = ranks.run(f"{FILE}:own_connection", 2, where=where, limit=LIMIT)
    assert one.error == "RuntimeError", one.output
    assert "could not read shard 7: Connection reset by peer" in one.text
    assert zero.error == "RankError", zero.output
    assert "because rank 1 failed" in zero.text
    assert "could not read shard 7: Connection reset by peer" in zero.text


def test_ctrl_c_while_the_ranks_tell_one_another_what_they_wish_is_not_lost(either_ranks: Any) -> None:
    zero, one = either_ranks.values(f"{FILE}:interrupted_in_an_exchange", 2, limit=LIMIT)
    assert zero == one
    assert zero["reason"] == "keyboard interrupt"
    assert zero["step"] < 200


def test_a_rank_that_fails_in_a_process_group_of_the_users_wakes_the_others(ranks: Any) -> None:
    zero, one = ranks.values(f"{FILE}:failed_in_their_group", 2, limit=LIMIT)
    assert zero == {"ended": ["teardown", "RankError"]}
    assert one == {"ended": ["teardown", "ValueError"]}
