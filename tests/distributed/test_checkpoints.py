"""Checkpoints of several processes that all have the whole model (DDP)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TRAIN = "cases_of_checkpoints.py:train"
PEEK = "cases_of_checkpoints.py:peek"
CALLBACKS = ["ema", "best", "stop"]


def preempted(ranks: Any, folder: Path, size: int = 2, **args: Any) -> dict[str, Any]:
    """A run that rank 1's signal has ended in the middle of the first epoch, and what it has saved."""
    told = ranks.run(TRAIN, size, folder=str(folder), trouble="preempt", at=3, **args)
    assert [(its.code, its.error) for its in told] == [(143, "Preempted")] * size, told
    (found,) = ranks.values(PEEK, 1, folder=str(folder))
    assert 3 <= found["step"] < 6
    return dict(found)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_of_two_ranks_that_was_left_goes_on_bitwise_as_if_it_had_not_been(
    ranks: Any, tmp_path: Path, strategy: str
) -> None:
    args: dict[str, Any] = {"strategy": strategy, "every": "4st", "with_callbacks": CALLBACKS, "counts": True}
    whole = ranks.values(TRAIN, 2, folder=str(tmp_path / "whole"), **args)
    saved = preempted(ranks, tmp_path / "cut", **args)
    rest = ranks.values(TRAIN, 2, folder=str(tmp_path / "cut"), resume="auto", **args)
    for before, after in zip(whole, rest, strict=True):
        assert after["loaded"]["weights"] == saved["weights"]
        assert after["ends"] == before["ends"]
        assert after["losses"] == before["losses"]
        assert after["sample"] == before["sample"] == 88
        assert after["warned"] == []
    again = ranks.values(TRAIN, 2, folder=str(tmp_path / "cut"), resume="auto", **args)
    assert [its["events"] for its in again] == [["loaded"]] * 2, "a run that is finished trains and saves no more"


def test_a_run_that_was_stopped_is_extended_and_not_stopped_again_by_the_vote_that_was_saved(
    ranks: Any, tmp_path: Path
) -> None:
    for its in ranks.values("cases_of_checkpoints.py:stopped_and_extended", 2, folder=str(tmp_path)):
        first, more = its["None"], its["auto"]
        assert first["reason"] == "enough"
        assert more == {"step": first["step"] + 3, "reason": f"max_duration ({first['step'] + 3}st) reached"}


def test_one_checkpoint_is_written_by_rank_zero_and_heard_of_by_all(ranks: Any, tmp_path: Path) -> None:
    found = ranks.values(TRAIN, 2, folder=str(tmp_path), every="4st", duration="1ep", keep_last=1)
    events = ["save 4", "saved 4 step-00000004", "save 6", "saved 6 step-00000006"]
    assert [its["events"] for its in found] == [events, events]
    assert [its["names"] for its in found] == [["step-00000006"]] * 2
    (there,) = ranks.values(PEEK, 1, folder=str(tmp_path))
    assert there["files"] == ["model.safetensors", "state.json", "state.safetensors"]
    assert there["ranks"] == 2


@pytest.mark.parametrize("what", ["request_save", "ask"])
def test_what_one_rank_asks_to_be_saved_all_save(ranks: Any, tmp_path: Path, what: str) -> None:
    found = ranks.values(TRAIN, 2, folder=str(tmp_path), every="1ep", duration="1ep", trouble=what, at=1)
    assert found[0]["events"] == found[1]["events"]
    assert found[0]["events"][0].startswith("save "), found[0]["events"]
    assert len(found[0]["names"]) == 2


@pytest.mark.parametrize(("strategy", "rank"), [("ddp", 0), ("fsdp", 0), ("fsdp", 1)])
def test_a_disk_that_is_full_for_one_rank_is_the_same_error_on_all(
    ranks: Any, tmp_path: Path, strategy: str, rank: int
) -> None:
    args: dict[str, Any] = {"strategy": strategy, "every": "2st", "duration": "1ep", "at": 4}
    told = ranks.run(TRAIN, 2, folder=str(tmp_path / "a"), trouble=f"full@{rank}", **args)
    assert [(its.code, its.error) for its in told] == [(1, "CheckpointWriteError")] * 2, told
    assert all("No space left on device" in its.text for its in told)
    (there,) = ranks.values(PEEK, 1, folder=str(tmp_path / "a"))
    assert (there["step"], there["left"]) == (2, [])
    # The same, where the run is to go on without it.
    found = ranks.values(TRAIN, 2, folder=str(tmp_path / "b"), trouble=f"full@{rank}", on_error="warn", **args)
    assert [its["events"] for its in found] == [found[0]["events"]] * 2
    assert "failed 4 CheckpointWriteError" in found[0]["events"]
    assert found[0]["names"] == ["step-00000002", "step-00000006"]


def test_a_rank_that_raises_leaves_no_checkpoint_of_a_half_made_step(ranks: Any, tmp_path: Path) -> None:
    told = ranks.run(TRAIN, 2, folder=str(tmp_path), every="2st", trouble="raise", at=3)
    assert [its.code for its in told] == [1, 1]
    (there,) = ranks.values(PEEK, 1, folder=str(tmp_path))
    assert there["step"] == 2


def test_saves_in_the_background_are_told_to_all_ranks(ranks: Any, tmp_path: Path) -> None:
    found = ranks.values(TRAIN, 2, folder=str(tmp_path), every="2st", background=True, duration="1ep")
    assert found[0]["events"] == found[1]["events"]
    assert [event.split()[-1] for event in found[0]["events"] if event.startswith("saved")] == found[0]["names"]
    assert found[0]["names"] == ["step-00000002", "step-00000004", "step-00000006"]


def test_a_damaged_newest_checkpoint_is_passed_over_by_all_ranks(ranks: Any, tmp_path: Path) -> None:
    ranks.values(TRAIN, 2, folder=str(tmp_path), every="2st", duration="1ep", strategy="fsdp")
    shard = tmp_path / "checkpoints" / "step-00000006" / "shard-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    found = ranks.values(TRAIN, 2, folder=str(tmp_path), every="2st", duration="1ep", strategy="fsdp", resume="auto")
    for its in found:
        assert its["loaded"]["step"] == 4
        assert its["events"][:2] == ["rejected step-00000006", "loaded"]
    assert len(found[0]["warned"]) == 1, "it is said once, by rank zero"
    assert "step-00000006" in found[0]["warned"][0]
    assert found[1]["warned"] == []


def test_a_second_run_in_the_folder_is_refused_on_all_ranks(ranks: Any, tmp_path: Path) -> None:
    from hookline.checkpoint import FolderLock

    (tmp_path / "run").mkdir()
    with FolderLock(tmp_path / "run"):
        told = ranks.run(TRAIN, 2, folder=str(tmp_path / "run"), every="2st", duration="1ep")
    assert [its.error for its in told] == ["CheckpointLockedError"] * 2, told
