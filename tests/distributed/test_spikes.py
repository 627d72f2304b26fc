"""A batch that is far off, on one rank: all ranks leave its step out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASE = "cases_of_guards.py:train"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_spikes_on_either_rank_leave_weights_as_if_their_steps_had_not_been(
    ranks: Any, tmp_path: Path, strategy: str
) -> None:
    plan = {"callback": "SpikeGuard", "bad": 1e4, "planted": [13, 18], "strategy": strategy}
    guarded = ranks.values(CASE, 2, leave_out=False, folder=str(tmp_path / "guarded"), **plan)
    without = ranks.values(CASE, 2, leave_out=True, folder=str(tmp_path / "without"), **plan)
    assert guarded[0]["weights"] == guarded[1]["weights"] == without[0]["weights"]
    assert guarded[0]["step"] == guarded[1]["step"] == 10


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_at_the_last_finite_step(ranks: Any, tmp_path: Path) -> None:
    plan = {"callback": "StopOnNaN", "bad": float("nan"), "planted": [9], "strategy": "ddp"}
    first, second = ranks.values(CASE, 2, leave_out=False, folder=str(tmp_path), **plan)
    assert first["weights"] == second["weights"]
    assert first["step"] == second["step"] == 4
    assert first["reason"].startswith("the loss is nan on rank 1 in epoch 0, batch 4; weights and optimizer")
    assert first["reason"] == second["reason"]


@pytest.mark.parametrize("bad", [1e4, float("nan")])
def test_the_batch_of_a_spike_is_kept_by_the_rank_that_had_it(ranks: Any, tmp_path: Path, bad: float) -> None:
    """A value that is not a number is not equal to itself, also not to the one that came back from all ranks."""
    plan = {"callback": "SpikeGuard", "bad": bad, "planted": [13], "strategy": "ddp"}
    ranks.values(CASE, 2, leave_out=False, folder=str(tmp_path / "run"), **plan)
    kept = [path.parent.name for path in (tmp_path / "run" / "run" / "spikes").rglob("*.safetensors")]
    assert kept == ["rank-1"]
