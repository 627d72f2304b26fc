"""One rank leaves an evaluation, by a signal, or ``StopTraining`` in a hook or a task: all leave it, at one batch."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

FILE = "cases_of_left_evaluations.py"
LIMIT = 200.0
STRATEGIES = ["ddp", "fsdp"]


def both(ranks: Any, case: str, **args: Any) -> Any:
    """What both ranks say alike."""
    zero, one = ranks.values(f"{FILE}:{case}", 2, limit=LIMIT, **args)
    assert zero == one
    return zero


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stop_training_in_a_task_on_one_rank_ends_the_evaluation_of_all(ranks: Any, strategy: str) -> None:
    zero, one = ranks.values(f"{FILE}:fit_with_trouble", 2, limit=LIMIT, strategy=strategy, trouble="stop", pause=0.02)
    assert (zero["step"], one["step"]) == (2, 2)
    assert zero["reason"].startswith("enough")
    assert zero["ended"] == one["ended"] == 0
    assert one["seen"] == 3  # what it computed only for the others, nobody hears of
    assert 3 <= zero["seen"] <= 60


def test_stop_training_in_the_sanity_check_of_one_rank_is_no_missing_metric_on_any(ranks: Any) -> None:
    for found in ranks.values(f"{FILE}:stop_in_the_sanity_check", 2, limit=LIMIT):
        assert found["reason"].startswith("nothing to measure")
        assert found["step"] == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("hook", ["eval_start", "eval_batch_start", "eval_batch_end", "eval_loader_end"])
def test_stop_training_in_a_hook_of_one_rank_ends_the_evaluation_of_all(ranks: Any, strategy: str, hook: str) -> None:
    zero, one = ranks.values(f"{FILE}:fit_with_trouble", 2, limit=LIMIT, strategy=strategy, hook=hook)
    assert (zero["step"], one["step"]) == (2, 2)
    assert zero["ended"] == one["ended"] == 0
    assert zero["reason"].startswith("enough")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 0)])
def test_a_signal_to_one_rank_does_not_wait_for_the_end_of_the_evaluation(
    ranks: Any, tmp_path: Path, strategy: str, name: str, code: int
) -> None:
    found = both(ranks, "fit_with_trouble", strategy=strategy, trouble=name, pause=0.05, folder=str(tmp_path))
    assert found["code"] == code
    assert found["ended"] == 0
    assert 3 <= found["seen"] < 30  # of 30: all have left at the same batch


def test_a_signal_from_outside_leaves_a_long_evaluation_with_a_checkpoint(ranks: Any, tmp_path: Path) -> None:
    started = ranks.start(f"{FILE}:told", 2, folder=str(tmp_path))
    started.wait_for(tmp_path / "here-0")
    started.wait_for(tmp_path / "here-1")
    started.send(signal.SIGTERM, 1)
    zero, one = (its.value for its in started.finish(LIMIT))
    assert zero == one
    assert zero["code"] == 143
    assert zero["saved"] == "step-00000002"
    assert zero["ended"] == 0
    assert zero["seen"] < 30  # of 240


def test_a_state_that_one_rank_cannot_save_when_a_signal_comes_keeps_no_other_waiting(
    ranks: Any, tmp_path: Path
) -> None:
    assert both(ranks, "preempted_without_a_state", folder=str(tmp_path)) == {"code": 143, "saved": False}


@pytest.mark.parametrize("kind", ["called twice", "between two"])
def test_a_rank_that_leaves_a_batch_of_a_sharded_model_makes_up_all_that_it_owes(ranks: Any, kind: str) -> None:
    zero, one = ranks.values(f"{FILE}:two_roots", 2, limit=LIMIT, kind=kind)
    assert zero.startswith("enough")
    assert one == zero


def test_a_module_that_only_evaluations_call_is_not_called_for_others_in_training(ranks: Any) -> None:
    zero, one = ranks.values(f"{FILE}:two_roots", 2, limit=LIMIT, kind="only evaluated")
    assert zero == one
    assert "max_duration" in zero


def test_a_rank_that_leaves_a_sharded_model_before_its_first_forward_is_told_why_it_cannot(ranks: Any) -> None:
    zero, one = ranks.run(f"{FILE}:two_roots", 2, limit=LIMIT, kind="first batch")
    assert zero.error == one.error == "RankError"
    assert "before its forward" in one.text
    assert "rank 1" in zero.text


def test_stop_training_in_a_prediction_of_one_rank_is_refused_on_all(ranks: Any) -> None:
    zero, one = ranks.run(f"{FILE}:stop_in_prediction", 2, limit=LIMIT)
    assert zero.error == one.error == "RankError"
    assert "in predict_batch" in one.text
    assert "in predict_batch" in zero.text


def test_one_batch_that_is_fast_does_not_put_the_next_vote_off(ranks: Any) -> None:
    zero, one = ranks.values(f"{FILE}:uneven", 2, limit=LIMIT)
    assert zero == one
    assert 3 <= zero <= 20  # of 60


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_answer_inside_an_evaluation_that_is_left_later_is_whole(ranks: Any, strategy: str) -> None:
    zero, one = ranks.values(f"{FILE}:left_after_an_answer", 2, limit=LIMIT, strategy=strategy)
    assert zero == one
    assert (zero["step"], zero["ended"]) == (2, 0)
    assert zero["answers"] == [80]  # samples


def test_ctrl_c_between_a_break_and_the_next_call_ends_all_ranks_at_one_step(ranks: Any) -> None:
    found = both(ranks, "interrupted_after_break")
    assert found["step"] in (2, 3)
    assert "interrupt" in found["reason"].lower()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stop_training_at_the_end_of_a_loader_that_all_ranks_have_left_stops_all(ranks: Any, strategy: str) -> None:
    found = both(ranks, "stop_at_the_end_of_a_left_loader", strategy=strategy)
    assert found["step"] in (2, 3)
    assert found["reason"].startswith("enough")


def test_an_end_that_takes_long_is_not_taken_for_a_hang(ranks: Any) -> None:
    assert both(ranks, "slow_end") == 2
