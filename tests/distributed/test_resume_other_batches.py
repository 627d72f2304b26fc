"""A checkpoint gone on with by another number of processes, with another batch size in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TRAIN = "cases_of_checkpoints.py:train"


@pytest.mark.parametrize(("before", "after"), [((2, 4), (1, 8)), ((1, 8), (2, 4)), ((2, 4), (4, 2))])
def test_each_sample_of_the_epoch_comes_once(
    ranks: Any, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """The position was a number of batches: ``batch_size=64 // world_size`` lost half an epoch, or repeated it."""
    (size, batch), (to_size, to_batch) = before, after
    args: dict[str, Any] = {"folder": str(tmp_path), "every": "4st", "samples": 48, "evaluate": False}
    told = ranks.run(TRAIN, size, batch=batch, trouble="preempt", at=1, **args)
    assert [its.code for its in told] == [143] * size, told
    for its in ranks.values(TRAIN, to_size, batch=to_batch, resume="auto", duration="1ep", **args):
        assert its["sample"] == 48
