"""An own loop that is written for one process, started in several."""

from __future__ import annotations

from typing import Any

import pytest

CASES = "cases_of_loops.py"


@pytest.mark.parametrize(("accumulate", "batch_size"), [(1, 4), (2, 4), (1, 6)])
def test_an_own_loop_trains_bitwise_as_a_hand_written_ddp_loop(ranks: Any, accumulate: int, batch_size: int) -> None:
    # 6 is no power of two: to multiply a loss by it and to divide its gradient again would not give the same bits.
    theirs = ranks.values(f"{CASES}:hand_written", 2, accumulate=accumulate, batch_size=batch_size)
    ours = ranks.values(f"{CASES}:own_loop", 2, accumulate=accumulate, batch_size=batch_size)
    assert [its["weights"] for its in ours] == theirs
    assert theirs[0] == theirs[1]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("leave", ["before forward", "before backward", "before step", "after step", "StopTraining"])
def test_a_body_that_one_rank_leaves_ends_all_ranks_at_one_step(ranks: Any, leave: str, strategy: str) -> None:
    found = ranks.values(f"{CASES}:own_loop", 2, leave=leave, strategy=strategy)
    first, second = found
    assert first["step"] == second["step"] in (5, 6, 7)
    assert first["weights"] == second["weights"]
    assert first["samples"] == second["samples"]
    assert first["reason"] == second["reason"] == ("enough" if leave == "StopTraining" else "break")
    assert first["by"] == "the body of the loop on rank 1"
    assert second["by"] == "the body of the loop"


@pytest.mark.parametrize("leave", ["before forward", "before backward"])
def test_a_sharded_model_goes_along_too_whether_or_not_its_forward_was_begun(ranks: Any, leave: str) -> None:
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave=leave, strategy="fsdp")
    assert first["step"] == second["step"]
    assert first["weights"] == second["weights"]


def test_a_sharded_model_that_one_rank_leaves_before_its_first_forward_is_an_error_and_no_hang(ranks: Any) -> None:
    for its in ranks.run(f"{CASES}:own_loop", 2, leave="before forward", at=0, strategy="fsdp"):
        assert (its.code, its.error) == (1, "RankError"), its.output
        assert "rank 1 has left the body of its loop at step 0, and the others have not: before the first" in its.text
        assert "use run.stop()" in its.text


@pytest.mark.parametrize(("leave", "everybody"), [("before forward", True), ("before backward", False)])
def test_a_sharded_model_may_be_left_in_its_first_step_by_all_or_after_its_forward(
    ranks: Any, leave: str, everybody: bool
) -> None:
    who = [0, 1] if everybody else [1]
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave=leave, at=0, strategy="fsdp", ranks=who)
    assert first["step"] == second["step"] == (0 if everybody else 1)
    assert first["weights"] == second["weights"]
    assert first["reason"] == second["reason"] == "break"


@pytest.mark.parametrize("leave", ["before forward", "before step", "after step"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_windows_of_several_batches_are_left_together(ranks: Any, leave: str, at: int) -> None:
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave=leave, at=at, accumulate=3)
    assert (first["step"], first["weights"]) == (second["step"], second["weights"])


def test_a_body_that_all_ranks_leave_makes_no_step_more(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave="after step", ranks=[0, 1])
    assert first == second
    assert (first["step"], first["samples"], first["by"]) == (5, 40, "the body of the loop")


@pytest.mark.parametrize(("log_every", "eval_every"), [("5st", None), ("100st", "5st"), ("5st", "5st")])
def test_a_body_that_is_left_where_something_is_due_is_known_there(
    ranks: Any, log_every: str, eval_every: str | None
) -> None:
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave="after step", log_every=log_every, eval_every=eval_every)
    assert first["step"] == second["step"] == 5
    assert first["weights"] == second["weights"]


def test_a_body_that_is_left_at_the_end_of_an_epoch(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:own_loop", 2, leave="after step", at=8, eval_every="1ep")
    assert first["step"] == second["step"] == 8
    assert first["weights"] == second["weights"]


def test_an_optimizer_that_was_made_before_sharding_moves_the_weights(ranks: Any) -> None:
    assert ranks.values(f"{CASES}:moved_by_an_early_optimizer", 2) == [True, True]


def test_an_optimizer_with_a_state_of_whole_parameters_is_refused(ranks: Any) -> None:
    for told in ranks.run(f"{CASES}:early_optimizer_with_state", 2):
        assert told.error == "SetupError"
        assert "AdamW has made steps before the model was sharded" in told.text
