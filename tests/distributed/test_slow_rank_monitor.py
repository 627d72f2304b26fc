"""A rank that is slow is found, by all ranks, in real processes."""

from __future__ import annotations

from typing import Any

import pytest

CASE = "cases_of_slow_ranks.py:train"


@pytest.mark.parametrize(
    ("where", "strategy", "words"),
    [
        ("forward", "ddp", "in the forward and the loss"),
        ("data", "ddp", "waiting for data"),
        ("data", "fsdp", "waiting for data"),
    ],
)
def test_the_slow_rank_is_named_and_so_is_what_it_is_slow_in(ranks: Any, where: str, strategy: str, words: str) -> None:
    told = ranks.run(CASE, 2, where=where, strategy=strategy)
    assert [t.code for t in told] == [0, 0], told[0].output + told[1].output
    zero, one = (t.value for t in told)
    assert zero == one  # the same numbers on all ranks
    assert zero["failures"] == []
    assert zero["steps"] == [2, 4, 6, 8]
    # Not of the first interval: a first step takes long on any rank.
    assert zero["ranks/slowest"][1:] == [1, 1, 1]
    assert min(zero["ranks/slowdown"][1:]) > 1.5
    assert all(0 < share <= 1 for share in zero["ranks/waiting"])
    # In two intervals in a row it is slow, and it is said once, by one of them.
    assert told[0].output.count("rank 1 is slow") == 1
    assert words in told[0].output
    assert "is slow" not in told[1].output


def test_a_monitor_that_fails_on_one_rank_holds_up_nobody(ranks: Any) -> None:
    told = ranks.run(CASE, 2, where="forward", breaks=True)
    assert [t.code for t in told] == [0, 0], told[0].output + told[1].output
    zero, one = (t.value for t in told)
    assert zero["step"] == one["step"] == 8
    assert zero["failures"] == []
    assert "planted" in one["failures"][0]
    # From there on there is nothing to compare rank zero with, and it says nothing.
    assert zero["steps"] == [2, 4]
