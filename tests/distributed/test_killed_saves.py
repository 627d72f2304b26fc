"""A rank that is killed inside a save: what it leaves is never taken for a checkpoint, and the run goes on exactly."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

TRAIN = "cases_of_checkpoints.py:train"
PEEK = "cases_of_checkpoints.py:peek"
ARGS: dict[str, Any] = {"every": "2st", "duration": "1ep", "evaluate": False}

WRITTEN = -1
# The rank, and at which of its operations on files it dies: before any; while its file is half written; when its own
# is whole, and nobody knows; and rank zero, later than that or not.
KILLS = [("fsdp", 1, 0), ("fsdp", 1, 4), ("fsdp", 1, WRITTEN), ("fsdp", 0, 25)]
MORE = 20


@pytest.fixture(scope="module")
def whole(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same run, which nobody disturbs."""
    return {
        strategy: ranks.values(TRAIN, 2, folder=str(tmp_path_factory.mktemp(strategy)), strategy=strategy, **ARGS)
        for strategy in ("fsdp", "ddp")
    }


def check(ranks: Any, folder: Path, whole: dict[str, Any], strategy: str, rank: int, operation: int) -> int:
    told = ranks.run(TRAIN, 2, folder=str(folder), strategy=strategy, trouble=f"kill{operation}@{rank}", at=4, **ARGS)
    assert [its.code for its in told][rank] == -9, told[rank].output
    assert told[1 - rank].code == 1, "the other ends by itself"
    (left,) = ranks.values(PEEK, 1, folder=str(folder))
    assert left["step"] in (2, 4, 6), "an older one, or the new one whole"
    rest = ranks.values(TRAIN, 2, folder=str(folder), strategy=strategy, resume="auto", **ARGS)
    for before, after in zip(whole[strategy], rest, strict=True):
        assert after["loaded"]["step"] == left["step"]
        assert after["loaded"]["weights"] == left["weights"]
        if left["step"] == 6:  # the last one was whole: there is nothing to go on with
            assert left["weights"] == before["ends"]["weights"]
        else:
            assert after["ends"] == before["ends"]
    (end,) = ranks.values(PEEK, 1, folder=str(folder))
    assert (end["step"], end["left"]) == (6, []), "what was torn is swept away"
    return int(left["step"])


@pytest.mark.parametrize(("strategy", "rank", "operation"), KILLS)
def test_a_rank_that_is_killed_inside_a_save_leaves_the_one_before(
    ranks: Any, tmp_path: Path, whole: dict[str, Any], strategy: str, rank: int, operation: int
) -> None:
    found = check(ranks, tmp_path, whole, strategy, rank, operation)
    if rank == 1:
        assert found == 2


@pytest.mark.skipif("HOOKLINE_CHAOS" not in os.environ, reason="long: make chaos")
@pytest.mark.parametrize("seed", range(MORE))
def test_a_rank_that_is_killed_anywhere_in_a_save_never_leaves_a_torn_one(
    ranks: Any, tmp_path: Path, whole: dict[str, Any], seed: int
) -> None:
    """Five times each: before its shard, inside it, after it; and five times wherever chance has it."""
    draw = random.Random(seed)
    strategy = "fsdp" if seed % 4 < 3 else draw.choice(["fsdp", "ddp"])
    rank = 0 if strategy == "ddp" else draw.randrange(2)
    operation = (0, draw.randrange(1, 5), WRITTEN, draw.randrange(0, 60))[seed % 4]
    check(ranks, tmp_path, whole, strategy, rank, operation)
