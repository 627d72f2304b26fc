"""What goes wrong in silence, or waits for ever, where ranks see different things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASES = "cases_of_corners.py"


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_in_fp16_are_those_of_one_process_in_fp32(ranks: Any, weighted: bool) -> None:
    alone = ranks.values(f"{CASES}:gradients", 1, precision="fp32", weighted=weighted)[0]
    for found in ranks.values(f"{CASES}:gradients", 2, precision="fp16", weighted=weighted):
        assert 8 < len(found) <= len(alone) == 16
        for step, ours in found.items():
            assert ours == pytest.approx(alone[step], abs=0.02, rel=0.02)


def test_a_layer_that_is_thawed_later_is_averaged_too(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:thawed", 2)
    assert first == second


def test_a_learning_rate_that_follows_training_is_one_for_all_ranks(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:plateau", 2)
    assert first == second
    assert first[-1] < 0.05


def test_a_resume_that_writes_nothing_does_not_wait_for_ever(ranks: Any, tmp_path: Path) -> None:
    assert ranks.values(f"{CASES}:resumed_without_a_folder", 2, folder=str(tmp_path / "run")) == [6, 6]


def test_what_is_due_by_time_is_due_on_all_ranks_also_at_the_start(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:evaluated_by_time", 2)
    assert first == second


def test_batches_that_lose_samples_are_counted_right_however_short_steps_are(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:odd_batches", 2)
    assert first == second
    assert first["samples"] == ranks.values(f"{CASES}:odd_batches", 1)[0]["samples"] < 1600


def test_a_callback_that_skips_on_one_rank_skips_on_all_however_short_steps_are(ranks: Any) -> None:
    first, second = ranks.values(f"{CASES}:skipped", 2, hook="train_step_start")
    assert first == second
    assert (first["step"], first["batch"]) == (100, 101)


def test_a_skip_after_the_vote_is_an_error_that_says_when_to_ask(ranks: Any) -> None:
    first, second = ranks.run(f"{CASES}:skipped", 2, hook="backward_end")
    assert second.error == "ScopeError"
    assert "call it before the backward, in on_backward_start at the latest" in second.text
    assert first.error == "RankError"
    assert "rank 1 failed in Skips" in first.text


def test_a_task_that_skips_in_a_step_without_a_vote_is_told_what_to_do(ranks: Any) -> None:
    first, second = ranks.run(f"{CASES}:skipped_by_the_task", 2)
    assert second.error == "ScopeError"
    assert "'weight': 0" in second.text
    assert first.error == "RankError"


@pytest.mark.parametrize("samples", [66, 67, 70])
def test_the_last_samples_of_an_epoch_are_never_too_few_for_a_batch_norm(ranks: Any, samples: int) -> None:
    assert ranks.values(f"{CASES}:batch_norm", 2, samples=samples) == [samples, samples]


@pytest.mark.parametrize("hook", ["train_end", "fit_end"])
def test_a_signal_in_the_last_hooks_of_one_rank_is_for_all(ranks: Any, tmp_path: Path, hook: str) -> None:
    told = ranks.run(f"{CASES}:signalled_at_the_end", 2, hook=hook, folder=str(tmp_path / "run"))
    assert [its.code for its in told] == [143, 143]
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


@pytest.mark.parametrize(
    ("entry", "hook"),
    [("evaluate", "eval_end"), ("test", "eval_loader_end"), ("predict", "predict_end"), ("predict", "teardown")],
)
def test_a_signal_in_the_last_hooks_of_an_evaluation_alone_is_for_all(ranks: Any, entry: str, hook: str) -> None:
    told = ranks.run(f"{CASES}:signalled_at_the_end_of", 2, entry=entry, hook=hook)
    assert [its.code for its in told] == [143, 143], told[0].output


def test_a_signal_in_the_teardown_of_one_rank_is_for_all(ranks: Any) -> None:
    told = ranks.run(f"{CASES}:signalled_at_the_end", 2, hook="teardown", folder=False)
    assert [its.code for its in told] == [143, 143], told[0].output


def test_a_model_that_is_sharded_is_never_moved_to_a_device_whole(ranks: Any) -> None:
    whole = 4 * 64 + 64
    assert set(ranks.values(f"{CASES}:moved", 2, strategy="fsdp")[0]) == {whole // 2}
    assert set(ranks.values(f"{CASES}:moved", 2, strategy="ddp")[0]) == {whole}


def test_weights_go_to_all_ranks_whole_however_many_are_sent_at_once(ranks: Any) -> None:
    assert ranks.values(f"{CASES}:given_by_rank_zero", 2, counts=[1, 99, 0, 100, 101, 1000, 3]) == [True, True]


@pytest.mark.parametrize("kind", ["fp16", "fp16 weighted", "fp64"])
def test_a_resume_is_exact_whatever_weights_are_counted_in(ranks: Any, tmp_path: Path, kind: str) -> None:
    assert ranks.values(f"{CASES}:resumed_in_the_middle", 2, folder=str(tmp_path / "run"), kind=kind) == [True, True]


def test_steps_of_a_trial_in_fp16_are_as_large_as_in_fp32(ranks: Any) -> None:
    exact, half = (ranks.values(f"{CASES}:tried", 2, precision=its)[0] for its in ("fp32", "fp16"))
    assert sum(half) == pytest.approx(sum(exact), rel=0.3)  # some steps overflow


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_statistics_of_averaged_weights_are_those_of_the_data_of_all_ranks(ranks: Any, strategy: str) -> None:
    alone = ranks.values(f"{CASES}:averaged_statistics", 1, strategy="auto")[0]
    for found in ranks.values(f"{CASES}:averaged_statistics", 2, strategy=strategy):
        assert found["batches"] == alone["batches"] == 5
        assert found["running_mean"] == pytest.approx(alone["running_mean"], abs=1e-6)
        assert found["running_var"] == pytest.approx(alone["running_var"], abs=1e-6)


def test_a_batch_norm_that_sees_no_batch_has_the_statistics_of_one_process(ranks: Any) -> None:
    alone = ranks.values(f"{CASES}:statistics_of_unused", 1)[0]
    assert ranks.values(f"{CASES}:statistics_of_unused", 2) == [alone] * 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_step_shares_buffers_without_a_walk_through_all_modules(ranks: Any, strategy: str) -> None:
    first, second = ranks.values(f"{CASES}:walked", 2, strategy=strategy)
    own = {"ddp": 0, "fsdp": 7}[strategy]  # by torch, which is told in each backward whether to synchronise
    assert first["walks"] == second["walks"] == own
    assert first["seen"] == second["seen"]
    assert len(set(first["seen"])) == 10


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_of_a_part_that_a_hook_puts_into_the_model_are_shared(ranks: Any, strategy: str) -> None:
    first, second = ranks.values(f"{CASES}:walked", 2, strategy=strategy, late=True)
    assert first["seen"] == second["seen"]
    assert len(set(first["seen"])) == 10


@pytest.mark.parametrize(("bag", "accumulate"), [(False, 1), (True, 1), (False, 3)])
def test_gradients_that_are_sparse_are_averaged_as_those_of_one_process(ranks: Any, bag: bool, accumulate: int) -> None:
    (alone,) = ranks.values(f"{CASES}:sparse", 1, bag=bag, accumulate=accumulate)
    for found in ranks.values(f"{CASES}:sparse", 2, bag=bag, accumulate=accumulate):
        assert found["kinds"] == [True]
        assert found["step"] == alone["step"]
        assert found["weights"] == pytest.approx(alone["weights"], abs=1e-6)


def test_a_prediction_without_a_folder_of_its_own_has_one_folder_on_all_ranks(ranks: Any, tmp_path: Path) -> None:
    first, second = ranks.values(f"{CASES}:folder_of_a_prediction", 2, where=str(tmp_path))
    assert first == second
    assert first.startswith(str(tmp_path / "0"))


@pytest.mark.parametrize("stage", ["train", "val"])
def test_a_loader_that_all_ranks_replace_is_shared_by_them(ranks: Any, stage: str) -> None:
    alone = ranks.values(f"{CASES}:replaced", 1, stage=stage, only=None)[0]
    first, second = ranks.values(f"{CASES}:replaced", 2, stage=stage, only=None)
    assert first["weights"] == second["weights"]
    later = {"train": [1, "train", 2], "val": [2, "val", 2]}[stage]
    assert first["seen"].count(later) == second["seen"].count(later) == 6
    assert alone["seen"].count(later) == 12


@pytest.mark.parametrize("stage", ["train", "val"])
def test_a_loader_that_one_rank_replaces_is_an_error_on_all(ranks: Any, stage: str) -> None:
    for ended in ranks.run(f"{CASES}:replaced", 2, stage=stage, only=1):
        assert f"run.loaders['{stage}'], replaced: rank 0 has 0 times, rank 1 has 1 time" in ended.text
