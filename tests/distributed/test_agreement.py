"""Ranks must be about to do the same, and must keep the same weights: what differs is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.inside import checksums

CASES = "cases_of_agreement.py"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("max_duration", "max_duration: rank 0 has 1ep, rank 1 has 2ep. Pass the same arguments on all ranks."),
        ("extend", "extend: rank 0 has 1ep, rank 1 has 2ep."),
        ("eval_every", "eval_every: rank 0 has 1ep, rank 1 has None."),
        ("log_every", "log_every: rank 0 has 4st, rank 1 has 2st."),
        ("precision", "precision: rank 0 has fp32, rank 1 has bf16."),
        ("accumulate", "accumulate: rank 0 has 1, rank 1 has 2."),
        ("seed", "seed: rank 0 has 1, rank 1 has None."),
        ("strategy arguments", "strategy DDP, find_unused_parameters: rank 0 has False, rank 1 has True."),
        ("callbacks", "callback EarlyStopping(monitor='train/loss', patience=2): rank 0 has it, rank 1 does not"),
        ("val", "val loader: rank 0 does not have it, rank 1 has it."),
        ("names of val", "val loader 'c': rank 0 has it, rank 1 does not have it."),
        ("test", "test loader: rank 0 has it, rank 1 does not have it."),
        ("loss", "loss: rank 0 has MSELoss, rank 1 has L1Loss."),
        ("option of the loss", "loss, delta: rank 0 has 1.0, rank 1 has 2.0."),
        ("weight", "weight: rank 0 does not have it, rank 1 has it."),
        ("resume", "resume: rank 0 has None, rank 1 has auto."),
        ("path to resume from", "step-00000001."),
        ("lr", "optimizer AdamW, group 0, lr: rank 0 has 0.001, rank 1 has 0.01. Build the same"),
        ("lr as a tensor", "optimizer AdamW, group 0, lr: rank 0 has 0.25, rank 1 has 0.5."),
        ("betas", "optimizer AdamW, group 0, betas: rank 0 has (0.9, 0.999), rank 1 has (0.9, 0.99)."),
        ("optimizer class", "optimizer Adam: rank 0 has it, rank 1 does not have it."),
        ("parameter groups", "optimizer SGD, group 1: rank 0 has 2 parameters, rank 1 does not have it."),
        ("parameters of a group", "group 0, parameters: rank 0 has model.0.weight, model.0.bias, rank 1 has model.2.w"),
        ("scheduler", "scheduler 0: rank 0 does not have it, rank 1 has StepLR."),
        ("scheduler argument", "scheduler 0, _schedulers, 1, gamma: rank 0 has 0.1, rank 1 has 0.5."),
        ("scheduler every", "scheduler 0, every: rank 0 has 1st, rank 1 has 1ep."),
    ],
)
def test_what_differs_on_one_rank_is_an_error_that_names_it_on_all_of_them(
    ranks: Any, tmp_path: Path, what: str, words: str
) -> None:
    for told in ranks.run(f"{CASES}:differs", 2, what=what, folder=str(tmp_path)):
        assert (told.code, told.error) == (1, "SetupError"), told.output
        assert words in told.text


@pytest.mark.parametrize(
    ("what", "hook", "words"),
    [
        ("max_duration", "fit_start", "run.max_duration: rank 0 does not have it, rank 1 has 1st."),
        ("max_duration", "train_step_end", "run.max_duration: rank 0 does not have it, rank 1 has 61st."),
        ("accumulate", "train_epoch_start", "run.accumulate: rank 0 does not have it, rank 1 has 2."),
        ("accumulate", "train_step_end", "run.accumulate: rank 0 does not have it, rank 1 has 2."),
        ("limit_batches", "fit_start", "run.limit_batches('train'): rank 0 does not have it, rank 1 has 80."),
        ("roll_back", "train_step_end", "run.roll_back() to step 40: rank 0 does not have it, rank 1 has it."),
    ],
)
def test_a_setting_that_one_rank_changes_during_the_run_is_an_error_that_names_it(
    ranks: Any, tmp_path: Path, what: str, hook: str, words: str
) -> None:
    for told in ranks.run(f"{CASES}:changes_on_one_rank", 2, what=what, hook=hook, folder=str(tmp_path), limit=60):
        assert (told.code, told.error) == (1, "SetupError"), told.output
        assert words in told.text


def test_a_stop_of_one_rank_in_a_step_that_is_undone_is_forgotten(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:stop_of_an_undone_step", 2, by_itself=False, limit=60)
    assert found == [{"step": 12, "reason": "max_duration (12st) reached"}] * 2


def test_a_stop_of_the_callback_that_rolls_back_stays_on_all_ranks(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:stop_of_an_undone_step", 2, by_itself=True, limit=60)
    assert found == [{"step": 5, "reason": "seen enough"}] * 2


def test_folders_workers_and_what_is_rank_zeros_alone_may_differ(ranks: Any, tmp_path: Path) -> None:
    zero, one = ranks.values(f"{CASES}:may_differ", 2, folder=str(tmp_path))
    assert (zero["step"], zero["heard"], one["heard"]) == (8, 8, 0)
    assert zero["weights"] == one["weights"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("2.bias", "in 1 of 5 parameters: model.2.bias."),
        ("fixed", "in 1 of 5 parameters: model.fixed."),
        ("function", "in 4 of 5 parameters: model.0.weight, model.0.bias, model.2.weight, model.2.bias."),
    ],
)
def test_weights_that_drift_apart_end_all_ranks_at_the_epochs_end_before_they_are_saved(
    ranks: Any, tmp_path: Path, how: str, words: str
) -> None:
    for told in ranks.run(f"{CASES}:drifts", 3, how=how, folder=str(tmp_path)):
        assert (told.code, told.error) == (1, "RankError"), told.output
        assert "At step 3, rank 2 holds other values than ranks 0, 1" in told.text
        assert words in told.text
    assert not list(tmp_path.glob("checkpoints/step-*"))


def test_weights_that_are_meant_to_drift_apart_may(ranks: Any) -> None:
    zero, one = ranks.values(f"{CASES}:drifts", 2, how="allowed")
    assert zero["step"] == one["step"] == 8
    assert zero["weights"] != one["weights"]


@pytest.mark.parametrize(("precision", "sparse"), [("fp32", False), ("bf16", False), ("fp16", False), ("fp32", True)])
def test_ranks_that_do_the_same_keep_the_same_bits(ranks: Any, precision: str, sparse: bool) -> None:
    found = ranks.values(f"{CASES}:stays", 3, precision=precision, sparse=sparse)
    assert found[0]["weights"] == found[1]["weights"] == found[2]["weights"]
    assert found[0]["step"] == 15
    assert found[0]["seen"] != found[1]["seen"], "buffers are each rank's own, and are not compared"


def test_a_callback_for_ranks_that_the_run_does_not_have_is_refused(ranks: Any, tmp_path: Path) -> None:
    for told in ranks.run(f"{CASES}:counted", 2, on=[2, 5], steps=1, folder=str(tmp_path)):
        assert (told.code, told.error) == (1, "RegistrationError"), told.output
        assert "Counts.ranks = {2, 5}: this run has 2 processes (ranks 0 to 1), so it would never run." in told.text


def test_a_callback_for_ranks_of_which_the_run_has_some_runs_and_rank_zero_warns(ranks: Any, tmp_path: Path) -> None:
    """The same script may run in more processes."""
    zero, one = ranks.run(f"{CASES}:counted", 2, on=[1, 5, 6], steps=1, folder=str(tmp_path))
    assert (zero.value, one.value) == (0, 1)
    words = "Counts.ranks = {1, 5, 6}: this run has 2 processes (ranks 0 to 1), so it does not run on rank 5, 6"
    assert zero.output.count(words) == 1
    assert words not in one.output


def test_the_state_of_a_callback_is_saved_from_the_rank_that_runs_it(ranks: Any, tmp_path: Path) -> None:
    def train(size: int, steps: int) -> Any:
        return ranks.values(f"{CASES}:counted", size, on=[1], steps=steps, folder=str(tmp_path))

    assert train(2, steps=3)[1] == 3
    assert train(2, steps=2)[1] == 5
    (alone,) = ranks.run(f"{CASES}:counted", 1, on=[1], steps=2, folder=str(tmp_path))
    assert "Counts.ranks = {1}: this run is one process (rank 0), so it does not run" in alone.output
    assert train(3, steps=4)[1] == 9, "the state went through a run of one process, in which nobody counted"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_a_checksum_changes_with_any_bit_and_not_with_strides(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    whole = torch.randn(2, 3, dtype=torch.float64).to(dtype)
    (before,) = checksums([whole])
    assert checksums([whole.t(), whole.t().contiguous()]) == [before, before]
    for bit in range(8 * whole.element_size()):
        other = whole.clone()
        other.view(torch.uint8)[1, bit // 8] ^= 1 << bit % 8
        assert checksums([other]) != [before], bit
