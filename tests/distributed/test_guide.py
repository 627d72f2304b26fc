"""What the guide shows of many processes holds in many processes."""

from __future__ import annotations

from typing import Any


def test_the_strategy_of_the_guide_keeps_ranks_together(ranks: Any) -> None:
    zero, one = ranks.values("cases_of_guide.py:own_strategy", 2, every=2)
    assert zero["moved"]
    assert zero["step"] == 10
    assert zero["loss"] == one["loss"]
    assert zero["weights"] == one["weights"]  # averaged before the last evaluation
