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


@pytest.mark.parametrize("late", [1, 300])
def test_targets_of_minus_100_count_in_no_batch_however_late_they_come(ranks: Any, late: int) -> None:
    for its in ranks.run("cases_of_loss_weights.py:train_on_flat", 2, late=late):
        assert its.code == 0, its.output
        assert its.value["losses"] == pytest.approx(its.value["right"], rel=1e-9)
        assert its.value["weights"] == pytest.approx(its.value["right weights"], rel=1e-9)


def test_a_loss_with_a_collective_inside_is_called_equally_often_on_all_ranks(ranks: Any) -> None:
    for its in ranks.run("cases_of_loss_weights.py:gather", 2):
        assert its.code == 0, its.output
        assert its.output.count("is not a mean over samples") <= 1
