"""A callback that runs on some ranks only cannot ask for what all ranks must take part in: an error, not a hang."""

from __future__ import annotations

from typing import Any

import pytest

CASE = "cases_of_failures.py:ask"
LIMIT = 200.0


@pytest.mark.parametrize(
    ("what", "strategy"),
    [
        ("all_reduce", "ddp"),
        ("barrier", "ddp"),
        ("all_gather_object", "ddp"),
        ("run.evaluate", "ddp"),
        ("run.evaluate", "fsdp"),
        ("full_tensor", "fsdp"),
        ("an operation on a DTensor", "fsdp"),
        ("the backward of another DDP model", "ddp"),
    ],
)
def test_a_collective_on_rank_zero_alone_raises_at_once_and_names_the_callback(
    ranks: Any, what: str, strategy: str
) -> None:
    zero, one = ranks.run(CASE, 2, what=what, strategy=strategy, limit=LIMIT)
    assert (zero.code, zero.error) == (1, "CollectiveError"), zero.output
    assert "Zero.on_train_step_end runs on ranks='zero' only" in zero.text
    assert what != "run.evaluate" or "and run.evaluate() needs all ranks" in zero.text
    assert (one.code, one.error) == (1, "RankError"), one.output
    assert "because rank 0 failed in " in one.text
    assert "Zero.on_train_step_end at step 1" in one.text
    assert "CollectiveError" in one.text


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        ("scope", "zero", "Around.around_epoch"),
        ("any event", "local_zero", "Any_.on_train_step_end"),
        ("function", "zero", "act.on_train_step_end"),
        ("callback", [0], "Zero.on_train_step_end"),
    ],
)
def test_every_kind_of_hook_is_guarded(ranks: Any, kind: str, given: Any, name: str) -> None:
    zero, one = ranks.run(CASE, 2, what="all_reduce", kind=kind, ranks=given, limit=LIMIT)
    assert (zero.code, zero.error) == (1, "CollectiveError"), zero.output
    assert f"{name} runs on ranks=" in zero.text
    assert (one.code, one.error) == (1, "RankError"), one.output


def test_a_hook_of_all_ranks_may_use_collectives(ranks: Any) -> None:
    for what, strategy in (("all_reduce", "ddp"), ("run.evaluate", "fsdp"), ("an operation on a DTensor", "fsdp")):
        found = ranks.values(CASE, 2, what=what, ranks="all", strategy=strategy, limit=LIMIT)
        assert [its["step"] for its in found] == [4, 4]
