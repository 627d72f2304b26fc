"""A custom loop that is written for one process, started in several. Exits are in ``test_exits.py``."""

from __future__ import annotations

from typing import Any

import pytest

CASES = "cases_of_loops.py"


@pytest.mark.parametrize(("accumulate", "batch_size"), [(1, 4), (2, 4), (1, 6)])
def test_an_own_loop_trains_bitwise_as_a_hand_written_ddp_loop(ranks: Any, accumulate: int, batch_size: int) -> None:
    # 6 is no power of two: to multiply a loss by it and to divide its gradient again would not give the same bits.
    theirs = ranks.values(f"{CASES}:hand_written", 2, accumulate=accumulate, batch_size=batch_size)
    ours = ranks.values(f"{CASES}:own_loop", 2, accumulate=accumulate, batch_size=batch_size)
    assert ours == theirs
    assert theirs[0] == theirs[1]


def test_an_optimizer_that_was_made_before_sharding_moves_the_weights(ranks: Any) -> None:
    assert ranks.values(f"{CASES}:moved_by_an_early_optimizer", 2) == [True, True]


def test_an_optimizer_with_a_state_of_whole_parameters_is_refused(ranks: Any) -> None:
    for told in ranks.run(f"{CASES}:early_optimizer_with_state", 2):
        assert told.error == "SetupError"
        assert "AdamW has made steps before the model was sharded" in told.text
