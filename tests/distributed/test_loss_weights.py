"""Losses that are no mean over samples: training and evaluation on several ranks equal those of one full batch."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("strategy", "accumulate"), [("ddp", 1), ("ddp", 3), ("fsdp", 1)])
def test_two_ranks_equal_the_full_batch(ranks: Any, strategy: str, accumulate: int) -> None:
    expected = ranks.values("cases_of_loss_weights.py:by_hand", 1, ranks=2, accumulate=accumulate)[0]
    for found in ranks.values("cases_of_loss_weights.py:train", 2, accumulate=accumulate, strategy=strategy):
        assert found.keys() == expected.keys()
        for kind, right in expected.items():
            assert found[kind]["weights"] == pytest.approx(right["weights"], rel=1e-9, abs=1e-12), kind
            assert found[kind]["losses"] == pytest.approx(right["losses"], rel=1e-9), kind
            assert found[kind]["val"] == pytest.approx(right["val"], rel=1e-9), kind


def test_a_sum_is_refused(ranks: Any) -> None:
    for told in ranks.run("cases_of_loss_weights.py:add_up", 2):
        assert told.error == "SetupError"
        assert "reduction='sum'" in told.text
        assert "2 processes" in told.text


LATE = 300
"""Steps, after which votes are some steps apart."""


def test_targets_of_minus_100_in_a_later_batch_are_a_warning(ranks: Any) -> None:
    told = ranks.run("cases_of_loss_weights.py:train_on_flat", 2, first=None, late=LATE)
    assert [its.code for its in told] == [0, 0], told[0].output + told[1].output
    assert [its.value["step"] for its in told] == [2 * LATE] * 2
    assert told[0].output.count("those of the first batch did not") == 1
    assert "weight=lambda outputs, batch: (batch[1] != -100).sum()" in told[0].output


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_batch_of_any_rank_decides_for_all_ranks(ranks: Any, first: int) -> None:
    told = ranks.run("cases_of_loss_weights.py:train_on_flat", 2, first=first, late=20)
    for its in told:
        assert its.code == 0, its.output
        assert its.value["losses"] == pytest.approx(its.value["right"], rel=1e-9)
        assert "those of the first batch did not" not in its.output
