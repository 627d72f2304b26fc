"""What one rank asks for, all ranks do, at the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASES = "cases_of_loops.py"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("hook", "verb", "step"),
    [
        ("train_step_start", "stop", 4),
        ("forward_start", "stop", 4),
        ("optimizer_step_end", "stop", 5),  # after the vote of the fourth step: it counts in the next
        ("train_step_end", "raise_stop", 4),
    ],
)
def test_a_stop_on_one_rank_stops_all_at_one_step(
    either_ranks: Any, hook: str, verb: str, step: int, rank: int
) -> None:
    found = either_ranks.values(f"{CASES}:asked", 2, hook=hook, verb=verb, rank=rank)
    assert [its["step"] for its in found] == [step, step]
    assert [its["reason"] for its in found] == ["enough", "enough"]
    assert found[0]["weights"] == found[1]["weights"]


def test_a_stop_at_the_end_of_an_interval_counts_at_that_step(either_ranks: Any) -> None:
    found = either_ranks.values(f"{CASES}:asked", 2, hook="metrics_ready", verb="stop", log_every="3st")
    assert [its["step"] for its in found] == [3, 3]


def test_an_evaluation_that_one_rank_asks_for_is_made_by_all(either_ranks: Any) -> None:
    found = either_ranks.values(f"{CASES}:asked", 2, hook="train_step_start", verb="evaluate")
    assert found[0]["seen"] == found[1]["seen"]
    assert "eval_start after 4" in found[0]["seen"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("hook", ["train_step_start", "loss_ready"])
def test_a_step_that_one_rank_skips_is_skipped_by_all(either_ranks: Any, hook: str, strategy: str) -> None:
    found = either_ranks.values(f"{CASES}:asked", 2, hook=hook, verb="skip", strategy=strategy)
    assert found[0]["seen"] == found[1]["seen"]
    assert "step_skipped after 3" in found[0]["seen"]
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["step"] == found[1]["step"] == 7
    assert found[0]["batches"] == 8


def test_a_callback_that_is_added_during_the_run_can_skip_a_short_step(ranks: Any) -> None:
    found = ranks.values("cases_of_agreement.py:skips_with_a_late_callback", 2, limit=100)
    assert found == [[250, 249]] * 2


def test_short_steps_have_few_votes_and_right_numbers(either_ranks: Any) -> None:
    two, alone = either_ranks.values(f"{CASES}:short_steps", 2), either_ranks.values(f"{CASES}:short_steps", 1)
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["samples"] == alone[0]["samples"] == 2400
    assert two[0]["steps"] == 300
    assert two[0]["votes"][0] < 150


def test_the_distance_between_votes_in_short_steps_doubles(either_ranks: Any) -> None:
    # Three votes come before the first step: after the sanity check, when training starts, and when the epoch starts.
    assert either_ranks.values(f"{CASES}:vote_steps", 2) == [[0, 0, 0, 0, 1, 3, 7, 15, 31, 63, 127]] * 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_hook_gathers_the_values_of_all_ranks(ranks: Any, strategy: str) -> None:
    expected = [[{"rank": 0}, {"rank": 1}], strategy == "fsdp"]
    assert ranks.values(f"{CASES}:gathered", 2, strategy=strategy) == [expected, expected]


def test_a_callback_of_another_package_can_do_on_ranks_what_ours_can(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:used_seams", 2)
    assert [its.pop("padding") for its in found] == [[False] * 4, [False, False, True, False]]
    assert [its.pop("shards") for its in found] == [
        [[0, False], [8, False], [16, True]],
        [[4, False], [12, True]],
    ]
    expected = {
        "reduced": [3.0, 1.5, 2.0, 1.0],
        "unchanged": True,
        "broadcast": [0.0, 0.0],
        "batches": [3, 3, 2],
        "ending": ["stop", "rank 1 has enough", 3],
        "logged": [[2.0, 2.0, 1.0], [2.0, 2.0, 2.0]],
        "steps": 3,
    }
    assert found == [expected, expected]


def test_time_is_rank_zeros(either_ranks: Any) -> None:
    first, second = either_ranks.values(f"{CASES}:time_limit", 2)
    assert first == second > 0


def test_ranks_that_are_about_to_do_different_things_are_told_apart_at_once(either_ranks: Any, tmp_path: Path) -> None:
    table = tmp_path / "words.json"  # of torchrun
    for told in either_ranks.run(f"{CASES}:different_callbacks", 2, env={"TORCHELASTIC_ERROR_FILE": str(table)}):
        assert told.error == "SetupError"
        assert "callback LambdaCallback(): rank 0 does not have it, rank 1 has it." in told.text
    assert "SetupError: callback LambdaCallback()" in table.read_text()


def test_stop_training_in_a_task_is_an_error_that_says_what_to_do(either_ranks: Any) -> None:
    first, second = either_ranks.run(f"{CASES}:stop_in_a_task", 2)
    assert second.error == "RankError"
    assert "call run.stop('enough') and return the loss" in second.text
    assert first.error == "RankError"
    assert first.code == second.code == 1


@pytest.mark.parametrize(("stage", "name"), [("train", "the training loader"), ("val", "the val loader")])
def test_stop_training_in_the_data_of_one_rank_is_an_error_on_all(either_ranks: Any, stage: str, name: str) -> None:
    first, second = either_ranks.run(f"{CASES}:stop_in_data", 2, stage=stage)
    assert second.error == "RankError", second.output
    assert f"{name} raised StopTraining('no more data')" in second.text
    assert first.error == "RankError", first.output
    assert "because rank 1 failed" in first.text


@pytest.mark.parametrize("everywhere", [False, True])
def test_stop_training_in_the_iter_of_an_evaluation_loader_is_an_error_on_all(ranks: Any, everywhere: bool) -> None:
    first, second = ranks.run(f"{CASES}:stop_in_iter", 2, everywhere=everywhere, limit=200.0)
    words = "the val loader raised StopTraining('no more data') instead of its next batch, at step 4"
    assert second.error == first.error == "RankError", second.output
    assert words in second.text
    assert "call run.stop('no more data') in a hook" in second.text
    assert words in first.text


@pytest.mark.parametrize("scope", [False, True])
@pytest.mark.parametrize("where", ["count", "optimizer"])
def test_stop_training_between_hooks_and_batches_of_one_rank_is_an_error_on_all(
    ranks: Any, where: str, scope: bool
) -> None:
    first, second = ranks.run(f"{CASES}:stop_between", 2, where=where, scope=scope, limit=200.0)
    words = "StopTraining('enough') was raised at step 2, and not in a hook"
    assert second.error == first.error == "RankError", second.output
    assert words in second.text
    assert f"because rank 1 failed at step 2 with RankError: {words}" in first.text


def test_a_custom_loop_that_is_left_inside_an_update_is_an_error_on_all(ranks: Any) -> None:
    first, second = ranks.run(f"{CASES}:stop_in_the_update_of_an_own_loop", 2)
    assert second.error == first.error == "RankError", second.output
    assert "rank 1 left the body of its loop at step 2, and rank 0 continues" in second.text
    assert "rank 1 left the body of its loop at step 2, and rank 0 continues" in first.text


@pytest.mark.parametrize(("strategy", "accumulate"), [("ddp", 1), ("ddp", 2), ("fsdp", 1)])
def test_several_optimizers_train_as_in_one_process(either_ranks: Any, strategy: str, accumulate: int) -> None:
    alone = either_ranks.values(f"{CASES}:two_optimizers", 1, accumulate=accumulate)[0]
    for values in either_ranks.values(f"{CASES}:two_optimizers", 2, strategy=strategy, accumulate=accumulate):
        assert values == pytest.approx(alone, abs=1e-6)


def test_several_optimizers_of_a_sharded_model_refuse_windows_of_several_batches(either_ranks: Any) -> None:
    for told in either_ranks.run(f"{CASES}:two_optimizers", 2, strategy="fsdp", accumulate=2):
        assert told.error == "SetupError"
        assert "accumulate=1" in told.text
