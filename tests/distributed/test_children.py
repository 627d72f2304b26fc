"""Processes that are forked from a rank: they hold nothing of its connections, and are no ranks themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FILE = "cases_of_children.py"
LIMIT = 200.0
"""Seconds; a busy child is so for longer."""


def test_the_users_default_timeout_of_sockets_does_not_reach_those_of_torch(ranks: Any) -> None:
    expected = {"step": 4, "same": [True, True]}
    assert ranks.values(f"{FILE}:with_default_timeout", 2, limit=LIMIT) == [expected, expected]


def test_a_rank_that_is_killed_while_a_child_of_its_own_lives_ends_the_others(
    either_ranks: Any, tmp_path: Path
) -> None:
    started = either_ranks.start(f"{FILE}:killed_with_a_child", 2, folder=str(tmp_path))
    try:
        zero, one = started.finish(LIMIT)
    finally:
        (tmp_path / "over").touch()
    assert one.code == -9, one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output


@pytest.mark.parametrize("inside", [False, True])
def test_a_child_that_ends_takes_nothing_from_its_rank(ranks: Any, inside: bool) -> None:
    expected = {"steps": [4, 4], "codes": [0]}
    assert ranks.values(f"{FILE}:ended_child", 2, limit=LIMIT, inside=inside) == [expected, expected]
