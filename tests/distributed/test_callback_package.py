"""A callback of another package works on two ranks: both stop together, with the weights that rank 0 has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file


def test_a_callback_of_another_package_on_two_ranks(ranks: Any, tmp_path: Path) -> None:
    zero, one = ranks.values("cases_of_callback_package.py:keep_best", 2, folder=str(tmp_path))
    assert zero == one
    assert zero["stop"].startswith("val/loss has not improved on ")
    assert zero["best"] == min(zero["losses"]) == zero["losses"][-5]
    saved = {name: tensor.tolist() for name, tensor in load_file(tmp_path / "best.safetensors").items()}
    assert saved == zero["weights"]


def test_a_callback_of_another_package_resumes_on_two_ranks(ranks: Any, tmp_path: Path) -> None:
    case = "cases_of_callback_package.py:keep_best"
    whole, _ = ranks.values(case, 2, folder=str(tmp_path / "whole"))
    resumed, other = ranks.values(case, 2, folder=str(tmp_path / "killed"), pause=10)
    assert whole["steps"] > 10, "the pause comes before the stop"
    assert resumed == other
    assert (resumed["curve"], resumed["weights"]) == (whole["curve"], whole["weights"])


def test_a_callback_of_another_package_starts_a_second_run_as_a_new_one(ranks: Any, tmp_path: Path) -> None:
    case = "cases_of_callback_package.py:keep_best"
    new, _ = ranks.values(case, 2, folder=str(tmp_path / "new"))
    used, other = ranks.values(case, 2, folder=str(tmp_path / "used"), used=True)
    assert used == other
    assert used == new
