"""A rank that is gone is known to be gone: also where its workers live on, or where it ended well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FILE = "cases_of_lost_ranks.py"
LIMIT = 200.0
"""Seconds; a busy worker is so for longer."""


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_killed_while_its_workers_are_busy_ends_the_others(
    either_ranks: Any, tmp_path: Path, who: int
) -> None:
    """Its workers are processes of their own: what they hold of its connections would keep these open."""
    started = either_ranks.start(f"{FILE}:killed_with_busy_workers", 2, folder=str(tmp_path), who=who)
    try:
        told = started.finish(LIMIT)
    finally:
        (tmp_path / "over").touch()
    assert told[who].code == -9, told[who].output
    assert (told[1 - who].code, told[1 - who].error) == (1, "RankError"), told[1 - who].output


def test_a_worker_holds_no_connection_of_the_run_and_keeps_those_of_its_data(ranks: Any) -> None:
    for found in ranks.values(f"{FILE}:connections_of_workers", 2):
        assert found["here"] > 2, "there is none to hold"
        assert found["workers"] == 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_of_every_kind_are_rank_zeros_on_all_ranks(ranks: Any, strategy: str) -> None:
    for found in ranks.values(f"{FILE}:with_buffers", 2, strategy=strategy):
        assert len(found) > 5
        assert set(map(tuple, found.values())) == {(1.0,) * 6}


def test_a_collective_that_torch_refuses_is_not_taken_for_a_lost_rank(ranks: Any) -> None:
    expected = {"error": "RuntimeError: Invalid scalar type", "sum": 2.0}
    assert ranks.values(f"{FILE}:refused_by_torch", 2) == [expected, expected]


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_evaluates_alone_is_told_at_once_that_another_has_ended(ranks: Any, who: int) -> None:
    told = ranks.run(f"{FILE}:evaluated_by", 2, who=who, timeout="5m", limit=LIMIT)
    assert told[1 - who].code == 0, told[1 - who].output
    assert (told[who].code, told[who].error) == (1, "SetupError"), told[who].output
    assert f"rank {1 - who} has ended, and will not come" in told[who].text
    assert "Every rank must call fit, evaluate, test and predict" in told[who].text


def test_ranks_that_do_not_come_in_time_are_named(ranks: Any, tmp_path: Path) -> None:
    told = ranks.run(f"{FILE}:evaluated_by", 3, who=1, timeout="5s", over=str(tmp_path / "over"), limit=LIMIT)
    assert (told[1].code, told[1].error) == (1, "SetupError"), told[1].output
    assert "ranks 0, 2 have not come in 5 s" in told[1].text
    assert [told[0].code, told[2].code] == [0, 0], told[0].output
