"""A checkpoint of two ranks that the version before the engine was redrawn has saved continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.loop.test_earlier_version import assert_continues
from tests.support.earlier_version import copy_saved


def test_a_checkpoint_of_two_ranks_continues(ranks: Any, tmp_path: Path) -> None:
    case, folder = "cases_of_checkpoints.py:of_earlier_version", copy_saved("two-ranks", tmp_path / "resumed")
    whole = ranks.values(case, 2, folder=str(tmp_path / "whole"), resume=None)
    resumed = ranks.values(case, 2, folder=str(folder), resume="auto")
    for rank in range(2):
        assert_continues(whole[rank], resumed[rank])
