"""The pre-flight on several ranks leaves no trace, and reports what differs on all ranks."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("strategy", "accumulate"), [("ddp", 1), ("ddp", 2), ("fsdp", 1)])
def test_the_run_is_bitwise_the_run_without_a_preflight(ranks: Any, strategy: str, accumulate: int) -> None:
    for without, having in ranks.values("cases_of_preflight.py:both", 2, strategy=strategy, accumulate=accumulate):
        assert having == without


def test_a_mistake_in_the_data_of_one_rank_stops_all_ranks(ranks: Any) -> None:
    """Labels that only rank 1 has are out of range."""
    first, second = ranks.values("cases_of_preflight.py:mistake_on_one_rank", 2)
    assert first
    assert second


@pytest.mark.parametrize("how", ["stop", "memory"])
def test_a_step_of_the_trial_that_ends_early_on_one_rank_leaves_no_rank_waiting(ranks: Any, how: str) -> None:
    first, second = ranks.values("cases_of_preflight.py:ends_early_on_one_rank", 2, how=how)
    assert first[0] == 4
    assert second == first
