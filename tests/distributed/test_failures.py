"""A rank that fails ends all of them, within seconds, and all of them know why."""

from __future__ import annotations

from typing import Any

import pytest

CASE = "cases_of_failures.py:train"
LIMIT = 200.0
"""Seconds; the time-out of the group is five minutes, and is never waited for."""


def check_all_know(told: list[Any], where: str, who: int = 1) -> None:
    """The one that raised has its own error, unchanged; the others have one that says which, where, when and what."""
    for its in told:
        assert its.code == 1, its.output
        assert its.output.count("teardown") == 1, its.output
        if its.rank == who:
            assert its.error == "Planted", its.output
            assert its.text.startswith("no luck")
            assert f"rank {who} failed" in its.output.partition("Traceback")[0]
        else:
            assert its.error == "RankError", its.output
            assert f"because rank {who} failed" in its.text
            assert where in its.text
            assert " step " in its.text
            assert "Planted: no luck" in its.text
            assert "gloo/transport" not in its.output  # that the connection is cut is not the cause


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("on_setup", "Culprit.on_setup"),
        ("on_fit_start", "Culprit.on_fit_start"),
        ("on_sanity_check_start", "Culprit.on_sanity_check_start"),
        ("around_train", "Culprit.around_train"),
        ("on_train_epoch_start", "Culprit.on_train_epoch_start"),
        ("on_batch_fetch_start", "Culprit.on_batch_fetch_start"),
        ("data", "while fetching a batch"),
        ("train_batch", "at step 2"),
        ("on_backward_end", "Culprit.on_backward_end"),
        ("on_gradients_ready", "Culprit.on_gradients_ready"),
        ("after around_step", "Culprit.around_step"),
        ("on_eval_batch_end", "Culprit.on_eval_batch_end"),
        ("eval_batch", "at step 3"),
        ("on_epoch_end", "Culprit.on_epoch_end"),
        ("on_fit_end", "Culprit.on_fit_end"),
    ],
)
def test_an_error_on_one_rank_ends_all_and_is_named(either_ranks: Any, place: str, where: str) -> None:
    at = 0 if place in ("on_setup", "on_fit_start", "on_sanity_check_start", "around_train") else 2
    at = 0 if place == "on_train_epoch_start" else at
    check_all_know(either_ranks.run(CASE, 2, place=place, at=at, limit=LIMIT), where)


@pytest.mark.parametrize("place", ["on_train_step_end", "on_loss_ready", "eval_batch"])
def test_an_error_ends_all_ranks_that_share_a_sharded_model(either_ranks: Any, place: str) -> None:
    where = f"Culprit.{place}" if place.startswith("on_") else "at step"
    check_all_know(either_ranks.run(CASE, 2, place=place, strategy="fsdp", limit=LIMIT), where)


def test_an_error_in_the_body_of_an_own_loop_ends_all_ranks(either_ranks: Any) -> None:
    check_all_know(either_ranks.run(CASE, 2, place="body", own_loop=True, limit=LIMIT), "at step 2")


def test_an_error_on_rank_zero_which_keeps_the_store_is_known_to_the_others(either_ranks: Any) -> None:
    told = either_ranks.run(CASE, 3, place="on_train_step_end", who=0, limit=LIMIT)
    check_all_know(told, "Culprit.on_train_step_end", who=0)


def test_an_error_while_a_checkpoint_is_saved_ends_all_ranks(either_ranks: Any, tmp_path: Any) -> None:
    told = either_ranks.run(CASE, 2, place="on_checkpoint_save", folder=str(tmp_path), saves=True, limit=LIMIT)
    check_all_know(told, "Culprit.on_checkpoint_save")
    assert not list((tmp_path / "checkpoints").glob("step-*2*/manifest.json")), "a torn checkpoint was published"


def test_an_error_in_teardown_is_raised_where_it_rose_and_holds_nobody_up(either_ranks: Any) -> None:
    zero, one = either_ranks.run(CASE, 2, place="on_teardown", limit=LIMIT)
    assert (one.code, one.error) == (1, "Planted"), one.output
    assert zero.code == 0, zero.output
    assert zero.value["step"] == 12


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("raise without a text", "Unprintable: (its __str__ raises AttributeError)"),
        ("raise half a letter", "Planted: no luck \udcff"),
    ],
)
def test_an_error_whose_text_cannot_be_had_or_sent_is_known_to_the_others(ranks: Any, action: str, words: str) -> None:
    zero, one = ranks.run(CASE, 2, place="on_train_step_end", action=action, limit=LIMIT)
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "because rank 1 failed in Culprit.on_train_step_end at step 2" in zero.text
    assert words in zero.text
    assert one.code == 1
    assert one.output.count("teardown") == 1, one.output


@pytest.mark.parametrize("place", ["on_train_step_end", "around_step"])
def test_a_rank_that_exits_in_a_hook_is_named_with_the_hook(ranks: Any, place: str) -> None:
    zero, one = ranks.run(CASE, 2, place=place, action="exit", limit=LIMIT)
    assert (one.code, one.error) == (3, "SystemExit"), one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert f"because rank 1 failed in Culprit.{place} at" in zero.text
    assert "SystemExit: 3" in zero.text


def test_a_parameter_that_the_loss_does_not_reach_is_an_error_that_says_what_to_do(ranks: Any) -> None:
    case = "cases_of_lost_ranks.py:with_unused_parameters"
    told = ranks.run(case, 2, limit=LIMIT)
    assert [its.code for its in told] == [1, 1], told[0].output
    first = [its.text for its in told if its.error == "RuntimeError"]  # another may hear of it before it finds it, too
    assert first
    assert all("give strategy=hl.DDP(find_unused_parameters=True)" in text for text in first)
    assert ranks.values(case, 2, find_unused_parameters=True) == [4, 4]


def test_a_rank_that_is_killed_ends_the_others(either_ranks: Any, tmp_path: Any) -> None:
    for who in (1, 0):
        folder = tmp_path / str(who)
        folder.mkdir()
        started = either_ranks.start(CASE, 2, place="on_train_step_end", action="SIGKILL", who=who, folder=str(folder))
        told = started.finish(LIMIT)
        other = told[1 - who]
        assert told[who].code == -9
        assert (other.code, other.error) == (1, "RankError"), other.output
        assert "teardown" in other.output


def test_processes_whose_run_has_failed_say_why_they_cannot_run_another(either_ranks: Any) -> None:
    for rank, found in enumerate(either_ranks.values("cases_of_failures.py:fit_after_failure", 2)):
        assert found[0].startswith("Planted" if rank else "RankError")
        assert found[1].startswith("SetupError")
        assert "start the processes again" in found[1]
