"""The body of an own loop evaluates or predicts in the middle of a step, and one rank leaves that by ``break``."""

from __future__ import annotations

from typing import Any

import pytest

CASE = "cases_of_inner_evaluations.py:left"
LIMIT = 200.0


@pytest.mark.parametrize("stage", ["val", "predict"])
@pytest.mark.parametrize(
    ("place", "strategy", "precision"),
    [
        ("before backward", "ddp", "fp32"),
        ("before step", "ddp", "fp32"),
        ("before step", "ddp", "bf16"),
        ("before step", "fsdp", "fp32"),
    ],
)
def test_the_next_call_of_the_loop_ends_it_on_all_ranks(
    either_ranks: Any, stage: str, place: str, strategy: str, precision: str
) -> None:
    zero, one = either_ranks.values(
        CASE, 2, limit=LIMIT, place=place, stage=stage, strategy=strategy, precision=precision
    )
    assert zero["ended"] == one["ended"] == [1]
    assert zero["measured"] == one["measured"] == 1
    assert zero["step"] == one["step"] == 6
    assert zero["reason"] == one["reason"] == "max_duration (1ep) reached"
    if strategy == "ddp":
        assert zero["weights"] == one["weights"]
