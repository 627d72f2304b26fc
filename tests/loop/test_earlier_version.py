"""A checkpoint that the version before the engine was redrawn has saved continues as if nothing had happened.

Values are compared with a tolerance: the checkpoints were saved on another machine, whose torch may round otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.earlier_version import copy_saved, train


def assert_continues(whole: dict[str, Any], resumed: dict[str, Any]) -> None:
    assert resumed["clock"] == whole["clock"]
    assert resumed["rows"] == whole["rows"]
    assert resumed["values"] == pytest.approx(whole["values"], rel=1e-5)
    assert resumed["weights"] == pytest.approx(whole["weights"], rel=1e-4, abs=1e-6)


def test_a_checkpoint_of_one_process_continues(tmp_path: Path) -> None:
    folder = copy_saved("one-process", tmp_path / "resumed")
    assert_continues(train(tmp_path / "whole"), train(folder, resume="auto"))
